//! Names of images of Ceph RBD. Input: the text of a name.

use lunar_block::RbdLocation;

pub fn run(input: &[u8]) {
    let Ok(text) = std::str::from_utf8(input) else { return };
    match RbdLocation::parse(text) {
        Ok(image) => {
            assert_eq!(image.check(), Ok(()));
            let shown = image.to_string();
            assert!(!shown.contains(char::is_control));
            let again = RbdLocation::parse(&shown).expect("a name in its own notation");
            assert_eq!(again.to_string(), shown);
            assert_eq!(
                (again.pool, again.namespace, again.image, again.snapshot),
                (image.pool, image.namespace, image.image, image.snapshot)
            );
        }
        Err((what, hint)) => {
            assert!(!what.contains(char::is_control) && !hint.is_empty());
        }
    }
}
