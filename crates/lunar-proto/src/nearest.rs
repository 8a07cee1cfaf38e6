//! Suggestions for misspelled words.

/// Maximum number of characters of a word that are compared.
const LONGEST: usize = 64;

/// The candidate most similar to `word`; `None` if none is similar enough.
pub fn nearest<'c>(word: &str, candidates: impl IntoIterator<Item = &'c str>) -> Option<&'c str> {
    let word: Vec<char> = word.to_lowercase().chars().take(LONGEST).collect();
    // At a distance of 2, nearly every word of three letters would match.
    let limit = (word.len() / 3).max(if word.len() < 4 { 1 } else { 2 });
    candidates
        .into_iter()
        .map(|candidate| (distance(&word, candidate), candidate))
        .filter(|(distance, _)| *distance <= limit)
        .min_by_key(|(distance, _)| *distance)
        .map(|(_, candidate)| candidate)
}

/// The number of characters to insert, delete, replace, or swap with a neighbour to turn one word into the other.
fn distance(a: &[char], b: &str) -> usize {
    let b: Vec<char> = b.chars().collect();
    let mut rows: Vec<Vec<usize>> = vec![(0..=b.len()).collect()];
    for i in 0..a.len() {
        let mut row = vec![i + 1];
        for j in 0..b.len() {
            let replaced = rows[i][j] + usize::from(a[i] != b[j]);
            let mut best = replaced.min(rows[i][j + 1] + 1).min(row[j] + 1);
            if i > 0 && j > 0 && a[i] == b[j - 1] && a[i - 1] == b[j] {
                best = best.min(rows[i - 1][j - 1] + 1);
            }
            row.push(best);
        }
        rows.push(row);
    }
    rows[a.len()][b.len()]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nearest_finds_the_closest_word() {
        let keys = ["listen", "advertise", "block_size", "read_only"];
        assert_eq!(nearest("lisetn", keys), Some("listen"));
        assert_eq!(nearest("blocksize", keys), Some("block_size"));
        assert_eq!(nearest("Read-Only", keys), Some("read_only"));
        assert_eq!(nearest("colour", keys), None);
        assert_eq!(nearest("", keys), None);
        assert_eq!(nearest("moda", ["node", "map"]), Some("node"));
        assert_eq!(nearest("ab", ["key"]), None);
    }
}
