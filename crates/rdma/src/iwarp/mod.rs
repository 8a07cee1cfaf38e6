//! Software iWARP.
use crate::{Connected, Refused, Terms};
/// O
#[derive(Default)]
pub struct Options {}
/// C
pub async fn connect(_: net::Stream, _: &[u8], _: Terms, _: &Options) -> Result<Connected, Refused> { Err(Refused::Rejected(vec![])) }
