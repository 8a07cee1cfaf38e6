//! Copies the first MiB of a LUN inside itself, on tokio, with eight tasks at once:
//! `cargo run -p lunar-initiator --example tokio iscsi://HOST/IQN/0`

use lunar_initiator::any_executor::AsyncLun;
use lunar_initiator::{Error, Url};
use tokio::task::JoinSet;

const CHUNK: usize = 128 << 10;
const CHUNKS: u64 = 8;

/// Copies the first MiB of the LUN to the second. Returns the number of bytes copied.
pub async fn copy_first_mib(url: Url) -> Result<u64, Error> {
    let lun = AsyncLun::open(&url).await?;
    let mut tasks: JoinSet<Result<u64, Error>> = JoinSet::new();
    for n in 0..CHUNKS {
        let lun = lun.clone();
        tasks.spawn(async move {
            let mut data = vec![0; CHUNK];
            lun.read_at(n * CHUNK as u64, &mut data).await?;
            lun.write_at((CHUNKS + n) * CHUNK as u64, &data).await?;
            Ok(data.len() as u64)
        });
    }
    let mut copied = 0;
    while let Some(task) = tasks.join_next().await {
        copied += task.expect("the copy task panicked")?;
    }
    lun.flush().await?;
    lun.close().await?;
    Ok(copied)
}

#[tokio::main]
#[cfg_attr(test, allow(dead_code))]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let url = std::env::args().nth(1).ok_or("which LUN? iscsi://HOST[:PORT]/IQN/LUN")?;
    println!("{} bytes copied", copy_first_mib(url.parse()?).await?);
    Ok(())
}
