//! Ports with their addresses, their referrals, and the states of their ANA groups.

use super::NvmetImport;
use super::file::{NvmetConfig, NvmetNamespace, NvmetPort, NvmetReferral};
use super::subsystems::{Usual, report};
use crate::nvme_steps::listen_address;
use crate::portals::PortalSets;
use crate::{NewPortal, NewTransport, Outcome};

/// Parameters of a port.
const PARAMETERS: &[Usual] = &[
    Usual(
        "inline_data_size",
        &["-1", "8192", "16384"],
        Outcome::Changed,
        "hosts send up to 8 KiB with a command",
    ),
    Usual("max_queue_size", &["-1"], Outcome::Changed, "a queue has up to 1024 entries"),
    Usual("mdts", &["-1"], Outcome::Changed, "a command moves up to 1 MiB"),
    Usual("pi_enable", &["0"], Outcome::Lost, "protection information"),
];

/// A port that Lunar has too.
pub(super) struct OfferedPort<'a> {
    subsystems: &'a [String],
    /// Its index in the sets of portals.
    pub(super) set: usize,
}

impl OfferedPort<'_> {
    pub(super) fn offers(&self, nqn: &str) -> bool {
        self.subsystems.iter().any(|one| one == nqn)
    }
}

impl NvmetImport {
    /// Adds the ports of NVMe/TCP.
    pub(super) fn ports<'a>(&mut self, file: &'a NvmetConfig, sets: &mut PortalSets) -> Vec<OfferedPort<'a>> {
        let mut offered = Vec::new();
        for (n, port) in file.ports.iter().enumerate() {
            let place = format!("ports[{n}]");
            for (n, referral) in port.referrals.iter().enumerate() {
                self.referral(referral, &format!("{place}.referrals[{n}]"));
            }
            let shown = format!("port {}", port.portid.text());
            let addr = &port.addr;
            let listen = listen_address(addr.text("trtype"), addr.text("traddr"), addr.text("trsvcid"));
            match listen {
                Err(why) => self.0.notes.lost(place, format!("{shown}: {why}")),
                Ok(listen) if port.subsystems.is_empty() => {
                    self.0.notes.lost(
                        place,
                        format!("{shown}, {listen}: nothing listens there, for want of a subsystem"),
                    );
                }
                Ok(listen) => {
                    self.0.notes.carried(&place, format!("{shown}, {listen}"));
                    let transport = self.transport(port, &place);
                    report(&mut self.0.notes, PARAMETERS, &port.param, &format!("{place}.param"));
                    let tag = port.portid.number().and_then(|id| id.try_into().ok()).filter(|id| *id != 0);
                    let set = sets.add(tag, portals(&listen, transport));
                    offered.push(OfferedPort { subsystems: &port.subsystems, set });
                }
            }
        }
        offered
    }

    fn transport(&mut self, port: &NvmetPort, place: &str) -> NewTransport {
        if port.addr.text("tsas") != "tls1.3" {
            return NewTransport::NvmeTcp;
        }
        if port.addr.text("treq") == "not required" {
            self.0.notes.changed(format!("{place}.addr.treq"), "hosts without TLS, which must use it now");
        }
        let what = "the keys of TLS, which are in the keyring of the kernel: add `tls_key_file` to [[subsystem.host]]";
        self.0.notes.lost(format!("{place}.addr.tsas"), what);
        NewTransport::NvmeTls
    }

    fn referral(&mut self, referral: &NvmetReferral, place: &str) {
        let (name, addr) = (referral.name.text(), &referral.addr);
        match listen_address(addr.text("trtype"), addr.text("traddr"), addr.text("trsvcid")) {
            Err(why) => self.0.notes.lost(place, format!("the referral {name}: {why}")),
            Ok(_) if !referral.enable.is_set() => {
                self.0.notes.lost(place, format!("the referral {name}, which is disabled"));
            }
            Ok(to) => {
                self.0.notes.carried(place, format!("the referral {name} to {to}, at all portals"));
                if !self.0.configuration.nvme_referrals.contains(&to) {
                    self.0.configuration.nvme_referrals.push(to);
                }
            }
        }
    }

    /// Reports ports at which the ANA group of a namespace is not optimized.
    pub(super) fn access_states(
        &mut self,
        file: &NvmetConfig,
        nqn: &str,
        from: &NvmetNamespace,
        place: &str,
    ) {
        let group = from.ana_grpid.number().or_else(|| from.ana.text("grpid").parse().ok()).unwrap_or(1);
        for port in file.ports.iter().filter(|port| port.subsystems.iter().any(|one| one == nqn)) {
            let listed = port.ana_groups.iter().find(|one| one.grpid.number() == Some(group));
            let listed = listed.map(|one| one.ana.text("state")).filter(|state| !state.is_empty());
            let state = listed.unwrap_or(if group == 1 { "optimized" } else { "inaccessible" });
            if state != "optimized" {
                let port = port.portid.text();
                let what = format!(
                    "ANA group {group}, which is {state} at port {port}: it is optimized at each one"
                );
                self.0.notes.lost(place, what);
            }
        }
    }
}

/// The portals of a port. `[::]` accepts IPv4 too in the kernel's target.
fn portals(listen: &str, transport: NewTransport) -> Vec<NewPortal> {
    let v4 = listen.strip_prefix("[::]:").map(|port| format!("0.0.0.0:{port}"));
    let all = [Some(listen.to_owned()), v4].into_iter().flatten();
    all.map(|listen| NewPortal { listen, transport }).collect()
}
