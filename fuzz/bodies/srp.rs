//! Information units of SRP, from both sides. Every decoder reads the same bytes, and the result is encoded again.

use lunar_wire::srp::{
    DataBuffer, FromInitiator, FromTarget, LoginFormat, LoginReject, LoginRequest, LoginResponse, SrpCommand,
};

pub fn run(input: &[u8]) {
    for form in [LoginFormat::Ib, LoginFormat::RdmaCm] {
        if let Ok(login) = LoginRequest::decode(input, form) {
            assert_eq!(LoginRequest::decode(&login.encode(form), form), Ok(login));
            assert_eq!(login.initiator.to_string().parse(), Ok(login.initiator));
        }
    }
    if let Ok(response) = LoginResponse::decode(input) {
        assert_eq!(LoginResponse::decode(&response.encode()), Ok(response));
    }
    if let Ok(reject) = LoginReject::decode(input) {
        assert_eq!(LoginReject::decode(&reject.encode()), Ok(reject));
    }
    [None, Some(52), Some(68)].into_iter().for_each(|offset| from_initiator(input, offset));
    from_target(input);
}

fn from_initiator(input: &[u8], offset: Option<u16>) {
    let head = SrpCommand::tag_and_notifications(input);
    assert_eq!(head.is_some(), input.len() >= SrpCommand::LEN);
    let Ok(FromInitiator::Command(command)) = FromInitiator::decode(input, offset) else { return };
    assert_eq!(head, Some((command.tag, command.notifications)));
    let held = [command.data_out, command.data_in].map(|data| match data {
        DataBuffer::Immediate(bytes) => bytes.len(),
        DataBuffer::Indirect(all) => {
            let sum: u64 = all.descriptors().map(|one| u64::from(one.len)).sum();
            assert!(sum <= all.len.into() && all.list.len() <= all.table.len as usize);
            all.list.len()
        }
        DataBuffer::Direct(_) | DataBuffer::None => 0,
    });
    assert!(command.additional_cdb.len() + held.iter().sum::<usize>() <= input.len());
    let mut again = Vec::new();
    assert_eq!(command.encode(offset, &mut again), Ok(()));
    assert_eq!(SrpCommand::decode(&again, offset), Ok(command));
}

fn from_target(input: &[u8]) {
    let mut again = Vec::new();
    match FromTarget::decode(input) {
        Ok(FromTarget::Response(response)) => response.encode(&mut again),
        Ok(FromTarget::Aer(event)) => event.encode(&mut again),
        _ => return,
    }
    assert!(again.len() <= input.len());
    assert_eq!(FromTarget::decode(&again), FromTarget::decode(input));
}
