//! Whether what runs does what was checked.
//!
//! The models explore `spec`; the server executes `spec`; this crate looks at the seams between the two, and at what
//! comes out at the far end.
//!
//! - [`replay`]: the model's traces on live nodes, compared after every step.
//!
//! docs/conformance.md says what each part claims, what it costs and what it cannot see.

pub mod replay;
