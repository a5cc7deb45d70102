//! Requests, pages and speculative rounds over one target and its drafter; a plain-data API.
#![forbid(unsafe_code)]
