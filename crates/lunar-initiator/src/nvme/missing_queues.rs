//! I/O queues that the controller has granted, but that it has refused or not connected in time. The others work meanwhile.

use super::association::Association;
use super::local_controller::{LocalController, lock};
use crate::Error;
use std::future::pending;

/// The longest pause between two attempts, as a multiple of the first one.
const LONGEST: u32 = 64;

/// Connects the missing queues, one after the other, as long as the association lasts. The first attempt may still run.
pub async fn connect(local: &LocalController, association: &Association) -> Error {
    let first = local.options.timeouts.pause;
    let (mut pause, mut begun) = (first, association.late_queue.clone());
    loop {
        let number = lock(&local.info).io_queues + 1;
        if number > association.granted_queues {
            return pending().await;
        }
        let attempt = match begun.take() {
            Some(attempt) => attempt,
            None => {
                compio::time::sleep(pause).await;
                local.io.begin(association, &local.address, &local.options, number)
            }
        };
        match local.io.end(number, &attempt, local.options.timeouts.login).await {
            Ok(()) => {
                local.io.admit_one(number, association, &local.options);
                lock(&local.info).io_queues = number;
                tracing::info!(subsystem = %local.address.subsystem, "I/O queue {number} is connected");
                pause = first;
            }
            Err(e) => {
                tracing::debug!(subsystem = %local.address.subsystem, "{e}");
                pause = (pause * 2).min(first * LONGEST);
            }
        }
    }
}
