//! The scripts of the fuzz targets, played as tests: those that are kept, and random ones.

use std::path::Path;

use crate::attack::{Aim, attack};
use crate::random::Random;

/// Plays all scripts of a corpus.
fn replay(corpus: &str, aim: Aim) {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../tests/fuzz/corpus").join(corpus);
    let mut played = 0;
    for file in std::fs::read_dir(&folder).unwrap() {
        let path = file.unwrap().path();
        // A failure names its script.
        println!("{}", path.display());
        attack(&std::fs::read(&path).unwrap(), aim);
        played += 1;
    }
    assert!((20..200).contains(&played), "{played} scripts in {}", folder.display());
}

#[test]
fn kept_scripts_do_a_responder_no_harm() {
    replay("roce_responder", Aim::Responder);
}

#[test]
fn kept_scripts_do_a_requester_no_harm() {
    replay("roce_requester", Aim::Requester);
}

#[test]
fn random_scripts_do_no_harm() {
    for seed in 0..3000 {
        let mut random = Random::new(seed);
        let mut script = vec![0; usize::try_from(random.below(2000)).unwrap()];
        random.fill(&mut script);
        println!("seed {seed}");
        attack(&script, random.pick(&[Aim::Responder, Aim::Requester]));
    }
}
