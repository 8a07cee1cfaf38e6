//! ISIDs of the sessions with upstreams. They are recorded in a file, so that a router that was killed replaces the sessions
//! that it has left behind before it serves: a login with the same ISID ends them, with their writes (RFC 7143 section
//! 6.3.5). Each state folder has random ISIDs of its own, and an ISID is never given twice while a process runs: a session
//! may outlive the configuration that it was opened for.

use event_listener::Event as Bell;
use initiator::Error;
use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// ISIDs of a path that are recorded at most.
const MOST: usize = 256;

/// An ISID (RFC 7143 section 11.12.5).
pub type Isid = [u8; 6];

/// The ISIDs of a router.
#[derive(Debug, Default)]
pub struct Ports {
    file: Option<PathBuf>,
    paths: Mutex<BTreeMap<String, Recorded>>,
    /// Held by who writes the file: what is written last is what was recorded last.
    writing: Mutex<()>,
    /// Rings when the old sessions of a path were replaced, or could not be.
    bell: Bell,
}

/// A way to a logical unit.
#[derive(Clone, Copy, Debug)]
pub struct Way<'a> {
    /// The logical unit: how the names of all ways to it begin.
    pub unit: &'a str,
    /// The name of this one.
    pub path: &'a str,
}

/// The ISIDs of one path to a logical unit.
#[derive(Debug, Default)]
struct Recorded {
    /// All of them, the oldest first.
    all: Vec<Isid>,
    /// Those that this process has not used.
    unused: Vec<Isid>,
    old: Old,
}

/// The sessions that an earlier process may have left behind.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Old {
    /// There are none any more.
    #[default]
    Replaced,
    /// Somebody replaces them.
    BeingReplaced,
    /// They may be there.
    Left,
}

/// What the opening of a session finds.
enum Found {
    /// The sessions with these ISIDs are to be replaced first.
    Left(Vec<Isid>),
    /// Somebody else does that now.
    Wait,
    /// There is nothing to replace.
    Clear,
}

impl Ports {
    /// Those that are recorded in this file, and are recorded there from here on.
    pub fn kept_in(file: &Path) -> Ports {
        target::remove_leftovers(file);
        let text = fs::read_to_string(file).unwrap_or_default();
        Ports { file: Some(file.to_owned()), paths: Mutex::new(read(&text)), ..Ports::default() }
    }

    /// An ISID for a new session over this path. Old sessions with the logical unit are replaced first: `replace` logs in
    /// with each of their ISIDs. Those of other paths are among them, for theirs may be away: where both lead to one portal
    /// group, a login over this path ends them.
    ///
    /// # Errors
    /// Those of `replace`: an old session may still be there.
    pub async fn isid(
        self: &Arc<Self>,
        way: Way<'_>,
        replace: impl AsyncFnOnce(Vec<Isid>) -> Result<(), Error>,
    ) -> Result<Isid, Error> {
        let old = loop {
            let rings = self.bell.listen();
            match self.find(way) {
                Found::Left(old) => break old,
                Found::Wait => rings.await,
                Found::Clear => break Vec::new(),
            }
        };
        if !old.is_empty() {
            let mut replacing = Replacing { ports: self, path: way.path, end: Old::Left };
            replace(old).await?;
            replacing.end = Old::Replaced;
        }
        let (isid, is_new) = self.take(way.path);
        if is_new {
            self.clone().save().await;
        }
        Ok(isid)
    }

    fn lock(&self) -> MutexGuard<'_, BTreeMap<String, Recorded>> {
        self.paths.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// No session of this process has used it.
    pub fn is_unused(&self, isid: &Isid) -> bool {
        self.lock().values().any(|recorded| recorded.unused.contains(isid))
    }

    fn find(&self, Way { unit, path }: Way<'_>) -> Found {
        let mut paths = self.lock();
        let is_old = |(other, of): &(&String, &Recorded)| other.starts_with(unit) && of.old != Old::Replaced;
        let old: Vec<Isid> = paths.iter().filter(is_old).flat_map(|(_, of)| of.unused.clone()).collect();
        let recorded = paths.entry(path.to_owned()).or_insert_with(|| Recorded {
            old: if old.is_empty() { Old::Replaced } else { Old::Left },
            ..Recorded::default()
        });
        match recorded.old {
            Old::Replaced => Found::Clear,
            Old::BeingReplaced => Found::Wait,
            Old::Left => {
                recorded.old = Old::BeingReplaced;
                Found::Left(old)
            }
        }
    }

    /// One that is not used, and whether it is a new one.
    fn take(&self, path: &str) -> (Isid, bool) {
        let mut paths = self.lock();
        let recorded = paths.entry(path.to_owned()).or_default();
        if let Some(isid) = recorded.unused.pop() {
            return (isid, false);
        }
        if recorded.all.len() >= MOST {
            // Of a session that has long been replaced by a reload.
            recorded.all.remove(0);
        }
        let isid = initiator::new_isid();
        recorded.all.push(isid);
        (isid, true)
    }

    async fn save(self: Arc<Self>) {
        let Some(file) = self.file.clone() else { return };
        let to = file.clone();
        let saved = net::blocking(move || {
            let _writing = self.writing.lock().unwrap_or_else(PoisonError::into_inner);
            let text = written(&self.lock());
            target::replace_file(&to, text.as_bytes())
        });
        if let Err(e) = saved.await {
            let hint =
                "sessions that this router leaves behind if it is killed are not replaced by the next one";
            tracing::warn!("{}: {e}; {hint}", file.display());
        }
    }
}

/// The old sessions of a path are being replaced. Who does it may give up.
struct Replacing<'a> {
    ports: &'a Ports,
    path: &'a str,
    end: Old,
}

impl Drop for Replacing<'_> {
    fn drop(&mut self) {
        if let Some(recorded) = self.ports.lock().get_mut(self.path) {
            recorded.old = self.end;
        }
        self.ports.bell.notify(usize::MAX);
    }
}

/// A line for each: twelve hexadecimal digits, a space, and the path.
fn written(paths: &BTreeMap<String, Recorded>) -> String {
    let line = |path: &str, isid: &Isid| {
        let digits: String = isid.iter().map(|byte| format!("{byte:02x}")).collect();
        format!("{digits} {path}\n")
    };
    paths.iter().flat_map(|(path, of)| of.all.iter().map(move |isid| line(path, isid))).collect()
}

fn read(text: &str) -> BTreeMap<String, Recorded> {
    let mut paths: BTreeMap<String, Recorded> = BTreeMap::new();
    for (isid, path) in text.lines().filter_map(line) {
        let recorded = paths.entry(path.to_owned()).or_default();
        if recorded.all.len() < MOST && !recorded.all.contains(&isid) {
            recorded.all.push(isid);
            recorded.unused.push(isid);
            recorded.old = Old::Left;
        }
    }
    paths
}

fn line(text: &str) -> Option<(Isid, &str)> {
    let (digits, path) = text.split_once(' ')?;
    let is_plain = digits.len() == 12 && digits.bytes().all(|byte| byte.is_ascii_hexdigit());
    let number = is_plain.then(|| u64::from_str_radix(digits, 16).ok()).flatten()?;
    Some((number.to_be_bytes()[2..].try_into().ok()?, path))
}

#[cfg(test)]
mod tests {
    use super::*;
    use initiator::Kind;

    const PATH: &str = "r1/a iqn.x:y 0 iscsi://192.0.2.1/iqn.x:y/0";
    const BESIDE: &str = "r1/a iqn.x:y 0 iscsi://192.0.2.2/iqn.x:y/0";

    fn way(path: &str) -> Way<'_> {
        Way { unit: "r1/a iqn.x:y 0 ", path }
    }

    fn on_core<T: Send + 'static, W: Future<Output = T> + 'static>(
        test: impl FnOnce() -> W + Send + 'static,
    ) -> T {
        net::Cores::one().expect("an event loop").wait(0, test).expect("the test")
    }

    /// Three sessions of a process, one of them over another path; and the ISIDs that it has replaced.
    async fn run(file: PathBuf) -> (Vec<Isid>, Vec<Isid>) {
        let (ports, mut replaced, mut isids) = (Arc::new(Ports::kept_in(&file)), Vec::new(), Vec::new());
        for path in [PATH, PATH, "r1/b"] {
            let isid = ports.isid(Way { unit: path, path }, async |old| {
                replaced.extend(old);
                Ok(())
            });
            isids.push(isid.await.expect("an ISID"));
        }
        replaced.sort_unstable();
        isids.sort_unstable();
        (isids, replaced)
    }

    #[test]
    fn a_restart_keeps_the_isids_and_replaces_their_sessions() {
        let folder = std::env::temp_dir().join(format!("lunar-ports-{}", std::process::id()));
        let (one, other) = (folder.join("one"), folder.join("other"));
        let (first, again, another) =
            on_core(
                move || async move { (run(one.clone()).await, run(one.clone()).await, run(other).await) },
            );
        _ = fs::remove_dir_all(folder);
        assert_eq!((first.1.len(), first.0[0] == first.0[1]), (0, false));
        assert_eq!(again, (first.0.clone(), first.0.clone()));
        assert!(another.0.iter().all(|isid| !first.0.contains(isid)) && another.1.is_empty());
    }

    #[test]
    fn a_path_whose_old_sessions_stay_is_not_opened() {
        let ports = Arc::new(Ports {
            paths: Mutex::new(read(&format!("800000000001 {PATH}\n"))),
            ..Ports::default()
        });
        on_core(move || async move {
            let fails = async |_| Err(Error::new(Kind::Unreachable, "away"));
            assert!(ports.isid(way(PATH), fails).await.is_err());
            let of_path = [[0x80, 0, 0, 0, 0, 1]];
            for path in [BESIDE, PATH] {
                let isid = ports.isid(way(path), async |old| {
                    assert_eq!(old, of_path, "{path}");
                    Ok(())
                });
                assert_eq!(isid.await == Ok(of_path[0]), path == PATH, "each path has its own ISIDs");
            }
            assert!(!ports.is_unused(&of_path[0]));
        });
    }

    #[test]
    fn a_record_is_bounded_and_lines_that_are_none_are_left_out() {
        let lines: String = (0..2 * MOST).map(|n| format!("80000000{n:04x} {PATH}\n")).collect();
        let paths = read(&format!("\n+80000000001 x\nno line\n8000000000 x\n{lines}"));
        assert_eq!(paths.keys().collect::<Vec<_>>(), [PATH]);
        assert_eq!(paths[PATH].all.len(), MOST);
        let ports = Ports { paths: Mutex::new(paths), ..Ports::default() };
        let isids: std::collections::BTreeSet<Isid> = (0..2 * MOST).map(|_| ports.take(PATH).0).collect();
        assert_eq!((isids.len(), ports.lock()[PATH].all.len()), (2 * MOST, MOST));
    }
}
