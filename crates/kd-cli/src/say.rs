//! Lines on stderr.

/// Prints a line on stderr. Where even that is impossible (a full disk behind a redirection) there is nowhere to say so,
/// and the work goes on; `eprintln!` would panic.
macro_rules! say {
    ($($line:tt)*) => {{
        use std::io::Write as _;
        let _ = writeln!(std::io::stderr(), $($line)*);
    }};
}
