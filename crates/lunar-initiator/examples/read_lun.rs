//! Reads the first bytes of a remote LUN: `cargo run -p lunar-initiator --example read_lun iscsi://HOST/IQN/0`

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let url = std::env::args().nth(1).ok_or("which LUN? iscsi://HOST[:PORT]/IQN/LUN")?;
    let lun = lunar_initiator::blocking::BlockingLun::open(&url.parse()?)?;
    let mut data = vec![0; 4096.min(lun.capacity() as usize)];
    lun.read_at(0, &mut data)?;
    println!("{} bytes, of which the first are {:02x?}", lun.capacity(), &data[..16]);
    Ok(lun.close()?)
}
