//! The `lunar` command.
#![forbid(unsafe_code)]

mod adopt;
mod args;
mod attach;
mod bench;
mod captive;
mod check;
mod client;
mod completions;
mod configuration;
mod connect_hints;
mod copy;
mod discover;
mod doctor;
mod error_hints;
mod event_layer;
mod events;
mod exit;
mod gateway;
mod hex;
mod history;
mod host_id;
mod import;
mod info;
mod log;
mod ls;
mod man;
mod objects;
mod open_lun;
mod output;
mod page;
mod pr;
mod private_file;
mod rbd_image;
mod rdma;
mod router;
#[cfg(test)]
mod schemas;
mod scsi;
mod serve;
mod server;
mod service_manager;
mod session;
mod staged_files;
mod stderr;
mod top;
mod tree;

use args::{Cli, Command, Verbosity};
use clap::{ArgMatches, CommandFactory, FromArgMatches};
use exit::Failure;
use log::LogFormat;
use lunar_server::inherited::InheritedDescriptor;
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use signal_hook::consts::SIGXFSZ;
use std::backtrace::{Backtrace, BacktraceStatus};
use std::io;
use std::panic::PanicHookInfo;
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

fn main() -> ExitCode {
    completions::answer();
    let inherited = lunar_server::inherited::take();
    stderr::start();
    let _last_words = stderr::FlushOnDrop;
    std::panic::set_hook(Box::new(panicked));
    prepare();
    let ended = match parse() {
        Ok(cli) => run(cli.command, cli.verbosity, inherited),
        Err(e) if e.use_stderr() => return usage_error(&e),
        // Help or the version, as requested.
        Err(e) => output::stdout_result(e.print()).map(|()| ExitCode::SUCCESS).map_err(Failure::from),
    };
    match ended {
        Ok(code) => code,
        Err(failure) => {
            output::report(&failure.problems);
            failure.into()
        }
    }
}

/// Parses the command line.
fn parse() -> Result<Cli, clap::Error> {
    let matches = Cli::command().try_get_matches()?;
    output::set_json(asks_for_json(&matches));
    Cli::from_arg_matches(&matches)
}

/// Whether the command has `--json`.
fn asks_for_json(matches: &ArgMatches) -> bool {
    match matches.subcommand() {
        Some((_, matches)) => asks_for_json(matches),
        None => matches.try_get_one("json").ok().flatten().copied().unwrap_or(false),
    }
}

/// Prepares the process for any command. If a step fails, the command runs without it.
fn prepare() {
    // Makes a write beyond the file size limit fail instead of ending the process. Children get the default action
    // again, because a signal handler, unlike an ignored signal, does not survive exec.
    _ = signal_hook::flag::register(SIGXFSZ, Arc::new(AtomicBool::new(false)));

    _ = lunar_runtime::descriptors::raise();
    without_core_dumps();
}

/// Keeps memory out of core dumps, because it may hold secrets and data of hosts. If core dumps are piped to a
/// program, the kernel ignores the limit, and the filter excludes all memory. Unlike with PR_SET_DUMPABLE, the
/// process stays accessible to its user in /proc.
fn without_core_dumps() {
    let core = getrlimit(Resource::Core);
    _ = setrlimit(Resource::Core, Rlimit { current: Some(0), ..core });
    _ = std::fs::write("/proc/self/coredump_filter", "0");
}

/// Reports an invalid command line.
fn usage_error(e: &clap::Error) -> ExitCode {
    let text = e.render();
    output::stderr(if output::colours(&io::stderr()) { text.ansi().to_string() } else { text.to_string() });
    ExitCode::from(u8::try_from(e.exit_code()).unwrap_or(2))
}

/// Reports a panic as the standard library does. A blocked or full stderr does not stop it.
fn panicked(info: &PanicHookInfo) {
    let thread = std::thread::current();
    let backtrace = Backtrace::capture();
    let backtrace = match backtrace.status() {
        BacktraceStatus::Captured => format!("\n{backtrace}"),
        _ => String::new(),
    };
    output::stderr(format!("thread '{}' {info}{backtrace}\n", thread.name().unwrap_or("<unnamed>")));
}

/// Prints the result of a command, even if a part of it failed.
fn print_result((text, failure): (String, Option<Failure>)) -> Result<ExitCode, Failure> {
    output::stdout(text)?;
    failure.map_or(Ok(ExitCode::SUCCESS), Err)
}

fn run(
    command: Command,
    verbosity: Verbosity,
    inherited: io::Result<Vec<InheritedDescriptor>>,
) -> Result<ExitCode, Failure> {
    let format = match &command {
        Command::Serve(args) => args.log_format,
        _ => LogFormat::Text,
    };
    output::set_quiet(verbosity.quiet);
    log::start(level(&command), verbosity, format, matches!(command, Command::Serve(_)))?;
    match command {
        Command::Serve(args) => {
            let (sockets, state) = service_manager::inherited(inherited);
            return Ok(serve::serve(args, state, |setup, cores| server::start(setup, cores, sockets))?);
        }
        Command::Discover(args) => output::stdout(discover::discover(args)?)?,
        Command::Ls(args) => output::stdout(ls::ls(args)?)?,
        Command::Doctor(args) => return print_result(doctor::doctor(args)?),
        Command::Rdma(command) => output::stdout(rdma::rdma(&command)?)?,
        Command::Check(args) => output::stdout(check::check(&args)?)?,
        Command::Import(args) => return import::import(args),
        Command::Info(args) => output::stdout(info::info(args)?)?,
        Command::Pr(args) => output::stdout(pr::pr(args)?)?,
        Command::Scsi(args) => return scsi::scsi(args),
        Command::Copy(args) => return copy::copy(args),
        Command::Bench(args) => return bench::bench(*args),
        Command::Attach(args) => attach::attach(args)?,
        Command::Detach(args) => output::stdout(attach::detach::detach(args)?)?,
        Command::Events(args) => events::events(&args)?,
        Command::Config(command) => output::stdout(configuration::configuration(command)?)?,
        Command::Adopt(args) => output::stdout(adopt::adopt(&args)?)?,
        Command::Status(args) => return print_result(objects::status(&args)?),
        Command::Top(args) => top::top(&args)?,
        Command::Page(args) => page::page(&args)?,
        Command::Reload(args) => output::stdout(objects::reload(&args)?)?,
        Command::Stop(args) => return print_result(objects::stop(&args)?),
        Command::Target(command) => output::stdout(objects::target(command)?)?,
        Command::Lun(command) => output::stdout(objects::lun(command)?)?,
        Command::Disk(command) => output::stdout(objects::disk(command)?)?,
        Command::Access(command) => output::stdout(objects::access(command)?)?,
        Command::Chap(command) => output::stdout(objects::chap(command)?)?,
        Command::Portal(command) => output::stdout(objects::portal(command)?)?,
        Command::Subsystem(command) => output::stdout(objects::subsystem(command)?)?,
        Command::Namespace(command) => output::stdout(objects::namespace(command)?)?,
        Command::Host(command) => output::stdout(objects::host(command)?)?,
        Command::Session(command) => return print_result(session::session(command)?),
        Command::Router(command) => output::stdout(router::router(command)?)?,
        Command::Gateway(command) => output::stdout(gateway::gateway(command)?)?,
        Command::Diff { file, since, common } => {
            output::stdout(router::diff(file.as_deref(), since.as_deref(), &common)?)?;
        }
        Command::History(args) => output::stdout(history::history(&args)?)?,
        Command::Rollback(args) => output::stdout(history::rollback(&args)?)?,
        Command::Apply(args) => output::stdout(router::apply(&args)?)?,
        Command::Completions { shell } => output::stdout(completions::script(shell)?)?,
        Command::Man(args) => output::stdout(man::man(&args)?)?,
    }
    Ok(ExitCode::SUCCESS)
}

/// The level of the log, unless LUNAR_LOG is set. Commands that only print a result print its warnings too.
fn level(command: &Command) -> &'static str {
    match command {
        Command::Attach(args) if args.is_list() => "warn",
        Command::Serve(_) | Command::Attach(_) => "info",
        Command::Rdma(_)
        | Command::Check(_)
        | Command::Import(_)
        | Command::Config(_)
        | Command::Adopt(_)
        | Command::Status(_)
        | Command::Events(_)
        | Command::Top(_)
        | Command::Page(_)
        | Command::Reload(_)
        | Command::Stop(_)
        | Command::Target(_)
        | Command::Lun(_)
        | Command::Disk(_)
        | Command::Access(_)
        | Command::Chap(_)
        | Command::Portal(_)
        | Command::Subsystem(_)
        | Command::Namespace(_)
        | Command::Host(_)
        | Command::Session(_)
        | Command::Router(_)
        | Command::Gateway(_)
        | Command::Diff { .. }
        | Command::History(_)
        | Command::Rollback(_)
        | Command::Apply(_)
        | Command::Completions { .. }
        | Command::Man(_) => "off",
        Command::Copy(_)
        | Command::Bench(_)
        | Command::Discover(_)
        | Command::Ls(_)
        | Command::Doctor(_)
        | Command::Info(_)
        | Command::Pr(_)
        | Command::Scsi(_)
        | Command::Detach(_) => "warn",
    }
}
