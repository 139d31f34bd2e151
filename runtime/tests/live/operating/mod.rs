//! A new operator's first steps: first starts that fail and are repeated, commands that show the
//! cluster, and logs.

mod config;
mod logs;
mod overview;
mod starts;
