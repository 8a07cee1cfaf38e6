//! Software iWARP.
