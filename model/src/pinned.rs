//! How many different states each model has.
//!
//! The numbers depend on nothing but the protocol and the model: a change that changes one has to say why. `check` fails
//! when one is not as it stands here. The gallery's are pinned by its own tests.

const UNIQUE: &[(&str, usize)] = &[
    ("raft", 771_252),
    ("raft-late", 3_016_146),
    ("locks", 695_259),
    ("cluster", 675_066),
    ("raft-repeats", 9_226_776),
    ("raft-elections", 4_256_310),
    ("raft-clocks", 5_312_810),
    ("raft-snapshots", 3_487_565),
    ("raft-five", 349_850),
    ("raft-three-terms", 19_219_495),
    ("locks-two-keys", 463_587),
    ("locks-without-session", 344_260),
    ("locks-unnumbered", 120_495),
    ("locks-once-all", 125_027),
    ("locks-mixed", 530_911),
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
    ("locks-try", 9_133),
    ("locks-withdraw", 7_795),
    ("locks-once", 3_668),
    ("locks-asked", 320),
    ("locks-renumbered", 32_481),
    ("locks-once-keys", 13_385),
    ("raft-snapshots-longer", 48_231_876),
    ("raft-three-terms-late", 100_405_770),
    ("locks-all", 23_675_823),
    ("cluster-loss", 5_615_889),
];

/// The number of different states of a model, if it is known.
pub fn unique(model: &str) -> Option<usize> {
    UNIQUE.iter().find(|(name, _)| *name == model).map(|&(_, unique)| unique)
}
