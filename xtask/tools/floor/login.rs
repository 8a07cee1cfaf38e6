//! The response to the keys of a login request.

/// The longest negotiated data segment and burst, in bytes.
const MAX_BYTES: u32 = 262_144;

/// Responds to the offered keys; the first response of a login also has the portal group tag.
pub fn negotiate(text: &[u8], first: bool) -> Vec<u8> {
    let mut answer = if first { b"TargetPortalGroupTag=1\0".to_vec() } else { Vec::new() };
    let text = String::from_utf8_lossy(text);
    for (key, offer) in text.split('\0').filter_map(|pair| pair.split_once('=')) {
        if let Some(value) = value(key, offer) {
            answer.extend_from_slice(format!("{key}={value}\0").as_bytes());
        }
    }
    answer
}

/// The value for an offer; None for a declared key that needs no response.
fn value(key: &str, offer: &str) -> Option<String> {
    Some(match key {
        "InitiatorName" | "InitiatorAlias" | "SessionType" | "TargetName" => return None,
        "HeaderDigest" | "DataDigest" | "AuthMethod" => "None".into(),
        "FirstBurstLength" | "MaxBurstLength" => {
            offer.parse().unwrap_or(MAX_BYTES).min(MAX_BYTES).to_string()
        }
        "MaxRecvDataSegmentLength" => MAX_BYTES.to_string(),
        "MaxConnections" | "MaxOutstandingR2T" => "1".into(),
        "ErrorRecoveryLevel" => "0".into(),
        "IFMarker" | "OFMarker" => "No".into(),
        "DataPDUInOrder" | "DataSequenceInOrder" => "Yes".into(),
        "InitialR2T" | "ImmediateData" | "DefaultTime2Wait" | "DefaultTime2Retain" => offer.into(),
        _ => "NotUnderstood".into(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn offers_are_limited_and_unknown_keys_rejected() {
        let answer = negotiate(b"SessionType=Normal\0MaxBurstLength=1048576\0X-lab=1\0", true);
        assert_eq!(answer, b"TargetPortalGroupTag=1\0MaxBurstLength=262144\0X-lab=NotUnderstood\0");
    }
}
