//! The words of hints that name a command or an option of the program. The libraries below name none.

use lunar_initiator::{Hint, Remedy};

/// The words of a hint for users of the program.
pub fn words(hint: &Hint) -> &str {
    match hint.remedy() {
        Some(Remedy::LoginTimeout) => {
            "check the network with `lunar doctor URL`, or add login_timeout=TIME to the URL; --timeout can only shorten it"
        }
        Some(Remedy::RecoveryTimeout) => {
            "check the network with `lunar doctor URL`, or add a longer recovery_timeout=TIME to the URL"
        }
        Some(Remedy::PathsDiffer) => {
            "each --path must lead to the same LUN, and so must each portal in paths= of an nvme:// URL; `lunar ls URL` shows the \
             identity of a LUN"
        }
        Some(Remedy::NoRdmaDevice) => {
            "`lunar rdma list` shows the RDMA devices; remove provider=verbs from the URL to use software iWARP"
        }
        Some(Remedy::NotIscsi) => {
            "check that host and port are those of an iSCSI portal. If they are, the target is at fault: LUNAR_LOG=debug \
             logs details"
        }
        Some(Remedy::NotSrp) => {
            "check that the portal serves SRP. If it does, the target is at fault: LUNAR_LOG=debug logs details"
        }
        Some(Remedy::NoDhChapSecret) => {
            "copy the file with the secret that the target has for this host; or make a new one for both, with `lunar chap add --nvme \
             HOSTNQN --output FILE`"
        }
        _ => hint,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn remedy_names_the_command_and_other_hints_stay() {
        let text = "look at the RDMA devices of this host";
        let hint = Hint::with_remedy(text, Remedy::NoRdmaDevice);
        assert_eq!((&*hint, &words(&hint)[..17]), (text, "`lunar rdma list`"));
        assert_eq!(words(&Hint::new("look there")), "look there");
    }
}
