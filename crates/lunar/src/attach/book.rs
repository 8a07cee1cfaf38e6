//! The record of an attachment while its process lives. It names the session of each path before that sends a command: the next
//! process ends the writes of these sessions, and of no others.

use super::disk::session_of;
use lunar_initiator::{Admission, Error, Facts, Gate, Kind, Options, Session, Url};
use lunar_server::Problem;
use lunar_server::attached::{Attached, Record};
use std::io;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// The record, which paths and the main thread change. Its lock is taken before that of the folder.
pub struct Book {
    attached: Attached,
    page: Mutex<Page>,
}

struct Page {
    record: Record,
    /// Counts the paths that have logged in.
    entries: u64,
    /// The record belongs to who ends the process.
    is_over: bool,
}

impl Book {
    /// Of a record that is written already.
    pub fn of(attached: &Attached, record: Record) -> Arc<Book> {
        let page = Mutex::new(Page { record, entries: 0, is_over: false });
        Arc::new(Book { attached: attached.clone(), page })
    }

    /// The record as it is now. Not to be called with the lock of the folder.
    pub fn record(&self) -> Record {
        self.page().record.clone()
    }

    /// So many paths have logged in.
    pub fn entries(&self) -> u64 {
        self.page().entries
    }

    /// Changes the record, and writes it. Not to be called with the lock of the folder.
    ///
    /// # Errors
    /// When it cannot be written: it stays as it was.
    pub fn change(&self, change: impl FnOnce(&mut Record)) -> Result<(), Problem> {
        let mut page = self.page();
        self.write(&mut page, change)
    }

    /// The target carries out no writes any more of sessions that are over, unless a path has logged in since this number.
    ///
    /// # Errors
    /// As [`Book::change`].
    pub fn settled(&self, entries: u64) -> Result<(), Problem> {
        let mut page = self.page();
        if page.entries != entries {
            return Ok(());
        }
        self.write(&mut page, |record| record.left_behind.clear())
    }

    /// Paths write nothing any more. The record at the end.
    pub fn end(&self) -> Record {
        let mut page = self.page();
        page.is_over = true;
        page.record.clone()
    }

    fn write(&self, page: &mut Page, change: impl FnOnce(&mut Record)) -> Result<(), Problem> {
        let mut record = page.record.clone();
        change(&mut record);
        if record != page.record {
            self.attached.look()?.write(&record)?;
            page.record = record;
        }
        Ok(())
    }

    fn page(&self) -> MutexGuard<'_, Page> {
        self.page.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The row of a path.
#[derive(Clone)]
pub struct Row {
    /// The record.
    pub book: Arc<Book>,
    /// Which of the paths it is.
    pub at: usize,
    /// Where the path leads.
    pub url: Url,
}

impl Row {
    /// Writes this session down, and from now on each of its logins.
    ///
    /// # Errors
    /// When that cannot be written: nothing is to be sent.
    pub async fn open(&self, session: &Session) -> Result<(), Error> {
        let row = Arc::new(Entered { row: self.clone(), options: session.options().clone() });
        session.set_gate(row.clone());
        loop {
            let facts = session.facts();
            row.admit(&facts, false).await?;
            // It may have been made anew meanwhile.
            let now = session.facts();
            if (now.target_port(), now.user) == (facts.target_port(), facts.user) {
                return Ok(());
            }
        }
    }
}

/// The row of a session.
struct Entered {
    row: Row,
    options: Options,
}

impl Gate for Entered {
    fn admit(&self, facts: &Facts, has_orphans: bool) -> Admission {
        let session = session_of(&self.row.url, &self.options, facts);
        let (book, at) = (self.row.book.clone(), self.row.at);
        // The lock of the folder may have to be waited for.
        let write = lunar_runtime::blocking(move || {
            let mut page = book.page();
            if page.is_over {
                return Err(io::Error::other("the disk is being detached"));
            }
            page.entries += 1;
            let written = book.write(&mut page, |record| record.enter(at, session, has_orphans));
            written.map_err(|problem| io::Error::other(problem.what))
        });
        let failed = |e: io::Error| Error::new(Kind::Lost, format!("the record of the attachment: {e}"));
        Box::pin(async move { write.await.map_err(failed) })
    }
}
