//! libFuzzer drives the target that `PALISADE_FUZZ_TARGET` names.
#![no_main]

#[path = "../targets/mod.rs"]
mod targets;

use std::sync::OnceLock;

use libfuzzer_sys::{Corpus, fuzz_target};

static TARGET: OnceLock<targets::Target> = OnceLock::new();

fuzz_target!(|data: &[u8]| -> Corpus {
    let target = TARGET.get_or_init(|| {
        let name = std::env::var("PALISADE_FUZZ_TARGET").unwrap_or_default();
        let known = || targets::TARGETS.map(|target| target.name).join(", ");
        targets::TARGETS
            .into_iter()
            .find(|target| target.name == name)
            .unwrap_or_else(|| panic!("PALISADE_FUZZ_TARGET is {name:?}; it may be {}", known()))
    });
    (target.run)(data);
    Corpus::Keep
});
