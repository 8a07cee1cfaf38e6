//! A network namespace with links to this host, which a test can take down.

use crate::tool::{self, must};
use std::process::Command;
use std::sync::atomic::{AtomicU16, Ordering};
use std::time::Duration;

const LIMIT: Duration = Duration::from_secs(60);

/// A network namespace. Dropping it removes it with its links, when no process is in it any more.
pub struct Namespace {
    name: String,
    /// The number of each link. It is unique in this process.
    links: Vec<u16>,
}

impl Namespace {
    /// Makes a namespace with this number of links.
    ///
    /// # Errors
    /// Namespaces are not possible here. The text is the reason.
    pub fn new(links: usize) -> Result<Namespace, String> {
        static COUNT: AtomicU16 = AtomicU16::new(0);
        let links: Vec<u16> = (0..links).map(|_| COUNT.fetch_add(1, Ordering::Relaxed)).collect();
        let name = format!("lunar-{}-{}", std::process::id(), links.first().expect("a link"));
        ip(&["netns", "add", &name])?;
        let namespace = Namespace { name, links };
        (0..namespace.links.len()).try_for_each(|link| namespace.connect(link))?;
        Ok(namespace)
    }

    fn connect(&self, link: usize) -> Result<(), String> {
        let (here, there) = (format!("ln{}x{}", std::process::id(), self.links[link]), format!("eth{link}"));
        ip(&["link", "add", &here, "type", "veth", "peer", "name", &there, "netns", &self.name])?;
        ip(&["address", "add", &format!("{}/30", self.address(link, 1)), "dev", &here])?;
        ip(&["link", "set", &here, "up"])?;
        let own = format!("{}/30", self.address(link, 2));
        ip(&["-n", &self.name, "address", "add", &own, "dev", &there])?;
        ip(&["-n", &self.name, "link", "set", &there, "up"])
    }

    /// Its name.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// An address of a link: 1 is that of this host, and 2 that of the namespace.
    pub fn address(&self, link: usize, end: u8) -> String {
        // Of the shared address space (RFC 6598), so that other processes of this test use other addresses.
        let (process, number) = (std::process::id() % 2048, u32::from(self.links[link]));
        let third = process % 32 * 8 + number / 64;
        format!("100.{}.{third}.{}", 64 + process / 32, number % 64 * 4 + u32::from(end))
    }

    /// Lets the namespace reach another address of this host by a link. It lasts when the link is taken down and up.
    pub fn reach(&self, link: usize, host: &str) {
        // A route would not last.
        let (own, there) = (self.address(link, 2), format!("eth{link}"));
        must("ip", &["-n", &self.name, "address", "add", &own, "peer", host, "dev", &there]);
    }

    /// Takes a link down: packets of both directions are lost. The address of this host stays.
    pub fn cut(&self, link: usize) {
        must("ip", &["-n", &self.name, "link", "set", &format!("eth{link}"), "down"]);
    }

    /// Takes a link up again.
    pub fn restore(&self, link: usize) {
        must("ip", &["-n", &self.name, "link", "set", &format!("eth{link}"), "up"]);
    }

    /// A command that runs another one in this namespace. The caller adds its arguments.
    pub fn command(&self) -> Command {
        let mut command = Command::new("nsenter");
        command.arg(format!("--net=/run/netns/{}", self.name));
        command
    }
}

impl Drop for Namespace {
    fn drop(&mut self) {
        // A missing object is not an error here.
        tool::run(Command::new("ip").args(["netns", "delete", &self.name]), LIMIT);
    }
}

fn ip(arguments: &[&str]) -> Result<(), String> {
    let ran = tool::run(Command::new("ip").args(arguments), LIMIT);
    if ran.ok() { Ok(()) } else { Err(format!("ip {}: {}", arguments.join(" "), ran.said)) }
}
