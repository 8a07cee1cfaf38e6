//! The order of sent commands. Most responses arrive in this order, which makes them predictable.

use super::data_out::unsolicited;
use super::task::{Data, Task, Tasks};
use lunar_proto::parameters::Parameters;
use lunar_runtime::iscsi::receive::{PredictedPdu, ReceivePrediction};
use std::collections::VecDeque;

/// Sizes of data segments that get a buffer of their own when several PDUs are received at once. Larger segments are
/// received separately.
const FORESEEN: std::ops::RangeInclusive<usize> = 2 << 10..=64 << 10;
/// The number of completed commands that may remain in the queue.
const SPARE: usize = 64;

/// Tags in the order of sending. Some may belong to completed commands.
#[derive(Debug, Default)]
pub struct SendOrder(VecDeque<u32>);

impl SendOrder {
    /// Adds a command. `sent` is the number of commands without a response, including this one.
    #[inline]
    pub fn push(&mut self, tag: u32, tasks: &mut Tasks, sent: usize) {
        if self.0.len() > 2 * sent + SPARE {
            self.0.retain(|tag| tasks.sent(*tag).is_some());
        }
        self.0.push_back(tag);
    }

    /// Removes completed commands from the front.
    #[inline]
    pub fn settle(&mut self, tasks: &mut Tasks) {
        while self.0.front().is_some_and(|tag| tasks.sent(*tag).is_none()) {
            self.0.pop_front();
        }
    }

    /// Removes all.
    pub fn clear(&mut self) {
        self.0.clear();
    }

    /// Predicts the responses, up to the first one of unknown form.
    pub fn predict(&self, tasks: &mut Tasks, p: &Parameters, sight: &mut ReceivePrediction) {
        for tag in &self.0 {
            let Some(task) = tasks.sent(*tag) else { continue };
            let Some(answer) = predict(task, p, sight) else { return };
            sight.push(answer);
        }
    }
}

/// The predicted response of a command, if it fits into one PDU.
#[inline]
fn predict(task: &mut Task, p: &Parameters, sight: &ReceivePrediction) -> Option<PredictedPdu> {
    let len = if let Data::In(..) = task.data { task.expected as usize } else { 0 };
    if task.data_sn > 0 || !sight.has_room(len) {
        return None;
    }
    let buf = match &mut task.data {
        Data::None => None,
        Data::Out(buf) if unsolicited(buf.len(), p) == buf.len() => None,
        Data::In(buf, 0) if FORESEEN.contains(&len) && len <= p.max_recv_data_segment_length as usize => {
            Some(buf.take_if(|buf| buf.len() == len)?)
        }
        Data::In(..) | Data::Out(_) => return None,
    };
    Some(PredictedPdu { tag: task.tag, buf })
}
