//! How many different states each model has.
//!
//! The numbers depend on nothing but the protocol and the model: a change that changes one has to say why. `check` fails
//! when one is not as it stands here. The gallery's are pinned by its own tests.

const UNIQUE: &[(&str, usize)] = &[
    ("raft", 771_252),
    ("raft-late", 3_016_146),
    ("locks", 522_750),
    ("cluster", 675_066),
    ("raft-repeats", 9_226_776),
    ("raft-elections", 4_256_310),
    ("raft-clocks", 5_312_810),
    ("raft-snapshots", 3_487_565),
    ("raft-five", 349_850),
    ("raft-three-terms", 19_219_495),
    ("locks-two-keys", 366_909),
    ("locks-without-session", 231_852),
    ("locks-unnumbered", 82_773),
    ("locks-once-all", 69_099),
    ("locks-mixed", 383_973),
    ("cluster-cut", 7_049_858),
    ("cluster-retries", 1_410_446),
    ("raft-votes", 14_455),
    ("raft-even", 55_895),
    ("raft-prompt", 3_527_201),
    ("raft-pipelined", 795_270),
    ("raft-stale", 830_676),
    ("raft-heartbeat", 394_520),
    ("raft-figure-3-7", 519_717),
    ("raft-clocks-overtaken", 15_992),
    ("cluster-deposed", 1_037_242),
    ("cluster-away", 978_767),
    ("cluster-keepalives", 2_839_957),
    ("locks-try", 8_295),
    ("locks-withdraw", 7_035),
    ("locks-once", 3_066),
    ("locks-asked", 288),
    ("locks-renumbered", 28_539),
    ("locks-once-keys", 11_655),
    ("raft-snapshots-longer", 48_231_876),
    ("raft-three-terms-late", 100_405_770),
    ("locks-all", 17_980_821),
    ("cluster-loss", 5_615_889),
];

/// The number of different states of a model, if it is known.
pub fn unique(model: &str) -> Option<usize> {
    UNIQUE.iter().find(|(name, _)| *name == model).map(|&(_, unique)| unique)
}
