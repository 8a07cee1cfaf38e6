//! Opcodes (RFC 7143 section 11.2.1.2).

/// One row per opcode: constant, value, name.
macro_rules! opcodes {
    ($($name:ident = $value:literal, $text:literal;)*) => {
        $(#[doc = $text] pub const $name: u8 = $value;)*
        /// Whether RFC 7143 defines this opcode. The value has no I bit.
        pub fn is_known(opcode: u8) -> bool {
            matches!(opcode, $($value)|*)
        }

        /// The name of an opcode for messages, `unknown opcode` if RFC 7143 defines none.
        pub fn name(opcode: u8) -> &'static str {
            match opcode {
                $($value => $text,)*
                _ => "unknown opcode",
            }
        }
    };
}

opcodes! {
    NOP_OUT = 0x00, "NOP-Out";
    SCSI_COMMAND = 0x01, "SCSI Command";
    TASK_MANAGEMENT = 0x02, "Task Management Function Request";
    LOGIN = 0x03, "Login Request";
    TEXT = 0x04, "Text Request";
    DATA_OUT = 0x05, "Data-Out";
    LOGOUT = 0x06, "Logout Request";
    SNACK = 0x10, "SNACK Request";
    NOP_IN = 0x20, "NOP-In";
    SCSI_RESPONSE = 0x21, "SCSI Response";
    TASK_MANAGEMENT_RESPONSE = 0x22, "Task Management Function Response";
    LOGIN_RESPONSE = 0x23, "Login Response";
    TEXT_RESPONSE = 0x24, "Text Response";
    DATA_IN = 0x25, "Data-In";
    LOGOUT_RESPONSE = 0x26, "Logout Response";
    R2T = 0x31, "Ready To Transfer";
    ASYNC = 0x32, "Asynchronous Message";
    REJECT = 0x3f, "Reject";
}
