//! The Explorer can show every model.

use palisade_model::explore::MOST;
use palisade_model::models::models;

#[test]
fn every_model_fits_the_adapter() {
    for model in models() {
        assert!(model.model.properties().len() <= MOST, "{}", model.name);
    }
}
