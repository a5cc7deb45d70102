//! Draft trees: best-first builder, ancestor masks and walk; knows no model and no device.
#![forbid(unsafe_code)]
