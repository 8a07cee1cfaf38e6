//! The login phase of a target. Input: for each PDU, a byte of flags, a byte that is 0 for a Login Request or else
//! the opcode, the length of the data as two bytes, the data. In the first flags, the reserved bit 0x20 makes CHAP
//! required.

use lunar_proto::chap::{Authentication, ChapUser, Secret};
use lunar_proto::login::{Login, LoginPolicy, LoginStep, SEGMENT_LEN, TargetInfo};
use lunar_proto::parameters::Offer;
use lunar_wire::iscsi::status::LoginStatus;
use lunar_wire::iscsi::{Bhs, opcode};

struct House(Authentication);

impl LoginPolicy for House {
    fn discovery(&self) -> Result<Authentication, LoginStatus> {
        Ok(self.0.clone())
    }

    fn target(&self, name: &str, _: &str) -> Result<TargetInfo, LoginStatus> {
        let redirect = name.ends_with(":moved").then(|| ("192.0.2.1:3260".to_owned(), false));
        Ok(TargetInfo { alias: Some("Disks".into()), authentication: self.0.clone(), redirect })
    }

    fn authorize(&self, _: Option<&str>, _: &str, user: Option<&str>) -> Result<(), LoginStatus> {
        assert!(user.is_some() || !self.0.required, "a login without the required CHAP is authorized");
        Ok(())
    }
}

fn house(guarded: bool) -> House {
    if !guarded {
        return House(Authentication::none());
    }
    let user = |name: &str, secret: &[u8]| ChapUser { name: name.into(), secret: Secret::new(secret) };
    let users = [user("alice", b"alice's secret")].into();
    House(Authentication {
        required: true,
        users,
        mutual: Some(user("lunar", b"lunar's secret")),
        ..Authentication::none()
    })
}

pub fn run(mut input: &[u8]) {
    let house = house(input.first().is_some_and(|f| f & 0x20 != 0));
    let mut login = Login::new(Offer::default(), 1, 65536);
    while let [flags, kind, hi, lo, rest @ ..] = input {
        let len = usize::from(u16::from_be_bytes([*hi, *lo])).min(rest.len());
        let (data, after) = rest.split_at(len);
        input = after;
        let mut header = Bhs::new(if *kind == 0 { opcode::LOGIN } else { *kind });
        header.set_flags(*flags);
        match login.request(&header, data, &house) {
            LoginStep::Reply(pdu) => {
                assert!(pdu.data.len() <= SEGMENT_LEN && pdu.header.data_len() == pdu.data.len())
            }
            LoginStep::Ready => {
                assert!(login.chap_user().is_some() || !house.0.required);
                assert!(lunar_proto::name::is_valid(login.initiator_name()));
                let p = login.parameters();
                assert!(p.first_burst_length <= p.max_burst_length);
                assert!(login.accept(1, 32).data.len() <= SEGMENT_LEN);
                return;
            }
            LoginStep::Refuse(_) | LoginStep::Drop => return,
        }
    }
}
