use super::*;
use crate::log::LogFormat;
use lunar_admin::{Counters, SessionReport};
use lunar_runtime::error::with_hint;
use lunar_server::config::Target;
use lunar_target::config::{PortalGroup, Transports};
use lunar_target::{BoundPortal, PreparedPortals};
use std::sync::Mutex;
use std::time::Duration;

/// The port at which another program listens.
const TAKEN: u16 = 4444;

/// A target that records the calls of its methods.
#[derive(Clone, Default)]
pub(super) struct Fake(Arc<Mutex<Vec<String>>>, Arc<Mutex<Vec<SessionReport>>>);

impl TargetServer for Fake {
    fn sessions(&self) -> Vec<SessionReport> {
        self.1.lock().unwrap().clone()
    }

    fn session_count(&self) -> usize {
        0
    }

    fn heartbeat(&self, _: Duration, _: Box<dyn Fn() + Send>) {}

    fn stop_accepting(&self) {
        self.note("stop accepting".into());
    }

    fn dismiss(&self, instance: &str) {
        self.note(format!("dismiss {instance}"));
    }

    fn end_session(&self, tsih: u16) -> bool {
        self.note(format!("end {tsih}"));
        tsih == 1
    }

    fn portals(&self) -> Vec<BoundPortal> {
        let (address, transports) = ("127.0.0.1:3333".parse().unwrap(), Transports::TCP);
        vec![BoundPortal { address, tag: 1, advertise: None, transports }]
    }

    fn rest(
        &self,
        _: Vec<Arc<lunar_target::LogicalUnit>>,
    ) -> Result<Vec<lunar_target::Quiesced>, (usize, io::Error)> {
        Ok(Vec::new())
    }

    fn flush(&self, _: &str, _: &dyn Fn() -> bool) -> Option<Result<(), Vec<lunar_target::FlushFailure>>> {
        self.note("flush".into());
        Some(Ok(()))
    }

    fn prepare(&self, groups: &[PortalGroup]) -> io::Result<PreparedPortals> {
        let taken =
            groups.iter().flat_map(|group| &group.portals).any(|portal| portal.listen.port() == TAKEN);
        if taken { Err(io::ErrorKind::AddrInUse.into()) } else { Ok(PreparedPortals::default()) }
    }

    fn stranded(&self, groups: &[PortalGroup]) -> Vec<u16> {
        let is_served =
            |session: &SessionReport| groups.iter().any(|group| group.tag == session.portal_group);
        self.sessions()
            .into_iter()
            .filter(|session| !is_served(session))
            .map(|session| session.tsih)
            .collect()
    }

    fn excluded(&self, new: &Config) -> Vec<u16> {
        let is_out = |session: &SessionReport| {
            let target = session.target.as_deref().and_then(|name| new.target(name));
            let admits = |target: &Target| {
                target.access.is_empty()
                    || target.access.iter().any(|rule| rule.initiators.contains(&session.initiator))
            };
            target.is_some_and(|target| !admits(target))
        };
        self.sessions().iter().filter(|session| is_out(session)).map(|session| session.tsih).collect()
    }

    fn reload(&self, setup: TargetConfig, _: PreparedPortals) {
        self.note(format!(
            "reload {}",
            setup.targets.values().map(|target| target.luns.len()).sum::<usize>()
        ));
    }

    fn stop(&self, _: &dyn Fn()) -> Result<(), Vec<lunar_target::FlushFailure>> {
        self.note("stop".into());
        Ok(())
    }
}

impl Fake {
    fn note(&self, what: String) {
        self.0.lock().unwrap().push(what);
    }

    /// Gives a host a session with the target of [`Folder::config`].
    pub(super) fn log_in(&self) {
        let session = serde_json::json!({
            "tsih": 1, "initiator": "iqn.2026-11.org.example:host", "initiator_address": "192.0.2.1:1000",
            "target": "iqn.2026-11.org.example:a", "portal": "192.0.2.9:3260", "portal_group": 1,
            "isid": "400001370000", "transport": "TCP", "session_type": "Normal", "counters": Counters::default(),
            "connected_s": 1
        });
        self.1.lock().unwrap().push(serde_json::from_value(session).unwrap());
    }

    pub(super) fn notes(&self) -> Vec<String> {
        self.0.lock().unwrap().clone()
    }
}

pub(super) struct Folder(pub(super) PathBuf);

impl Folder {
    pub(super) fn new(name: &str) -> Folder {
        let path = std::env::temp_dir().join(format!("lunar-cli-{name}-{}", std::process::id()));
        _ = std::fs::remove_dir_all(&path);
        std::fs::create_dir_all(&path).unwrap();
        Folder(path)
    }

    /// Writes a configuration with this many null LUNs.
    pub(super) fn config(&self, luns: u16) -> PathBuf {
        let mut text = "[server]\nstate_dir = \"state\"\nadmin_socket = \"lunar.sock\"\n\
            [[target]]\nname = \"iqn.2026-11.org.example:a\"\n"
            .to_string();
        for lun in 0..luns {
            text += &format!("[[target.lun]]\nlun = {lun}\nbackend = \"null\"\nsize = \"1G\"\n");
        }
        let path = self.0.join("lunar.toml");
        std::fs::write(&path, text).unwrap();
        path
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        _ = std::fs::remove_dir_all(&self.0);
    }
}

pub(super) fn args(config: PathBuf) -> Serve {
    let (luns, listen, srp) = (Vec::new(), Vec::new(), Vec::new());
    let config = Some(config);
    Serve {
        luns,
        size: None,
        raw: false,
        listen,
        iser: false,
        srp,
        nvme: Vec::new(),
        target: None,
        config,
        run: None,
        cores: None,
        log_format: LogFormat::Text,
    }
}

pub(super) fn service(args: &Serve, fake: &Fake) -> Service<Fake> {
    Service::start(args, &channel().0, None, |_, _| Ok(fake.clone()))
        .map_err(|list| list[0].to_string())
        .unwrap()
}

#[test]
fn events_reload_and_stop() {
    let folder = Folder::new("events");
    let fake = Fake::default();
    let mut service = service(&args(folder.config(1)), &fake);
    assert!(folder.0.join("lunar.sock").exists());
    let (events, inbox) = channel();
    folder.config(3);
    events.send(ServeEvent::Reload).unwrap();
    events.send(ServeEvent::Stop).unwrap();
    assert!(wait(&inbox, &mut service, None).is_none());
    service.stop(true).unwrap();
    assert_eq!(fake.notes(), ["reload 3", "stop"]);
    assert!(!folder.0.join("lunar.sock").exists());
}

#[test]
fn certificate_that_expires_is_looked_at_each_day() {
    use interop::certificates::{Authority, write};
    let folder = Folder::new("day");
    Authority::new("authority").server(&["localhost"]).write(&folder.0, "server");
    write(&folder.0, "tokens", "ann write 0123456789abcdef0123456789abcdef\n");
    let api = "[api]\nlisten = [\"127.0.0.1:0\"]\ncertificate_file = \"server.pem\"\nkey_file = \"server.key\"\n\
               token_file = \"tokens\"\n";
    let file = folder.config(1);
    std::fs::write(&file, std::fs::read_to_string(&file).unwrap() + api).unwrap();
    let mut service = service(&args(file), &Fake::default());
    let end = service.published.get().certificate_not_after.expect("the end of the certificate");
    let day = |days: u64| SystemTime::UNIX_EPOCH + Duration::from_secs(end - days * 86400);
    assert_eq!(certificate_warning(&service.config, day(15)), None);
    assert!(certificate_warning(&service.config, day(13)).unwrap().contains(" expires on "));
    service.published = Published::default();
    let (events, inbox) = channel();
    let now = Instant::now();
    events.send(ServeEvent::Stop).unwrap();
    assert!(wait(&inbox, &mut service, None).is_none());
    assert_eq!(service.published.get().certificate_not_after, None, "the day is not over");
    service.next_look = now;
    events.send(ServeEvent::Stop).unwrap();
    assert!(wait(&inbox, &mut service, None).is_none());
    assert_eq!(service.published.get().certificate_not_after, Some(end));
    assert!(service.next_look >= now + DAY);
}

#[test]
fn wrong_configuration_is_not_loaded() {
    let folder = Folder::new("wrong");
    let fake = Fake::default();
    let file = folder.config(2);
    let mut service = service(&args(file.clone()), &fake);
    std::fs::write(&file, "[sever]").unwrap();
    service.reload();
    assert!(fake.notes().is_empty());
    assert_eq!(service.config.targets[0].luns.len(), 2);
}

#[test]
fn portal_that_cannot_be_bound_changes_nothing() {
    let folder = Folder::new("bind");
    let fake = Fake::default();
    let file = folder.config(2);
    let mut service = service(&args(file.clone()), &fake);
    let text = std::fs::read_to_string(&file).unwrap();
    let group = format!("[[portal_group]]\ntag = 2\nportals = [\"127.0.0.1:{TAKEN}\"]\n");
    std::fs::write(&file, format!("{text}{group}")).unwrap();
    service.reload();
    assert!(fake.notes().is_empty() && !service.last_reload.unwrap().is_success);
    assert!(service.in_force.portal_groups.iter().all(|group| group.tag != 2));
    std::fs::write(&file, format!("{text}{}", group.replace("4444", "4445"))).unwrap();
    service.reload();
    assert_eq!(fake.notes(), ["reload 2"]);
    assert!(service.in_force.portal_groups.iter().any(|group| group.tag == 2));
}

#[test]
fn captive_command_has_urls_and_sets_exit_status() {
    let folder = Folder::new("captive");
    let service = service(&args(folder.config(1)), &Fake::default());
    let (events, inbox) = channel();
    let command = format!("echo $LUNAR_URL $LUNAR_PORTAL > {}/said; exit 7", folder.0.display());
    let _captive = service.captive(&command, events).unwrap();
    let ServeEvent::Ended(status) = inbox.recv().unwrap() else { panic!("the command did not end") };
    assert_eq!(exit_code(status), ExitCode::from(7));
    let said = std::fs::read_to_string(folder.0.join("said")).unwrap();
    assert_eq!(said, "iscsi://127.0.0.1:3333/iqn.2026-11.org.example:a/0 127.0.0.1:3333\n");
}

#[test]
fn captive_command_is_ended_by_a_stop() {
    let folder = Folder::new("ended");
    let mut service = service(&args(folder.config(1)), &Fake::default());
    let (events, inbox) = channel();
    let captive = service.captive("exec sleep 60", events.clone()).unwrap();
    std::thread::sleep(Duration::from_millis(50));
    events.send(ServeEvent::Stop).unwrap();
    let status = wait(&inbox, &mut service, Some(captive)).unwrap();
    assert_eq!(exit_code(status), ExitCode::from(128 + 15));
}

#[test]
fn failed_start_reports_the_reason() {
    let folder = Folder::new("start");
    let serve = args(folder.config(1));
    let message = |kind: io::ErrorKind| {
        let failed = Service::<Fake>::start(&serve, &channel().0, None, |_, _| {
            Err(io::Error::new(kind, "127.0.0.1:3260: no"))
        });
        failed.err().unwrap()[0].to_string()
    };
    assert_eq!(
        message(io::ErrorKind::AddrInUse),
        "cannot serve: 127.0.0.1:3260: no\n  \
         hint: stop the program that listens at this address, or choose another address or port"
    );
    assert!(message(io::ErrorKind::PermissionDenied).contains("hint: ports below 1024 require privileges"));
    let cores = Serve { cores: Some("none".into()), ..args(folder.config(1)) };
    let failed =
        Service::<Fake>::start(&cores, &channel().0, None, |_, _| Ok(Fake::default())).err().unwrap();
    assert!(failed[0].to_string().starts_with("--cores: invalid core selection \"none\"\n  hint: "));
}

#[test]
fn hint_of_the_error_is_used() {
    let message =
        cannot_serve(&with_hint(io::Error::other("cannot listen: no device"), "leave provider out"))
            .to_string();
    assert_eq!(message, "cannot serve: cannot listen: no device\n  hint: leave provider out");
}
