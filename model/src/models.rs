//! All models by name, with their bounds. Bounds that several models share are in `layers`.

mod clusters;
mod consensus;
mod inductive;
mod leases;
mod lock_table;
mod wide;

use crate::named::Named;
use crate::{gallery, mutant_models};

/// All models, with the gallery, the quick ones first.
pub fn models() -> Vec<Named> {
    let mut models = consensus::models();
    models.extend(lock_table::models());
    models.extend(clusters::models());
    models.extend(leases::models());
    models.extend(inductive::models());
    models.extend(wide::models());
    models.extend(gallery::models());
    models.extend(mutant_models::models());
    models.sort_by_key(|model| model.tier);
    models
}
