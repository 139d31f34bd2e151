//! Many mutants in one source, each behind a switch: one build for all.
//!
//! The body of every mutated function becomes a choice: the body with the first mutant, with the
//! second, and so on, or else the original. An environment variable selects the mutant when the
//! built binary starts, so that all searches use the same binary (R. Untch, A. Offutt, M. J.
//! Harrold, *Mutation Analysis Using Mutant Schemata*, 1993). Only the copy that is searched has
//! such switches; the protocol itself has none.

use std::ops::Range;

use proc_macro2::{Delimiter, TokenStream, TokenTree};

use super::Error;
use super::mutant::Mutant;

/// The environment variable that selects a mutant by its number. Without it, none is on.
pub const ON: &str = "PALISADE_MUTANT";

/// The end of the mutated crate's `lib.rs`: the switches.
pub const SWITCHES: &str = r#"
/// The number of the mutant that is on.
pub mod mutants {
    extern crate std;

    /// Whether the mutant of this number is on.
    #[must_use]
    pub fn is_on(number: usize) -> bool {
        static ON: std::sync::OnceLock<Option<usize>> = std::sync::OnceLock::new();
        *ON.get_or_init(|| std::env::var("PALISADE_MUTANT").ok()?.parse().ok()) == Some(number)
    }
}
"#;

/// A source that contains these mutants, each behind the switch of its number.
///
/// # Errors
/// If a mutant's text does not occur exactly once in the source, within the body of one function.
pub fn with_switches(source: &str, mutants: &[(usize, &Mutant)]) -> Result<String, Error> {
    let bodies = bodies(source);
    // The replacement of each mutated body, by the body's position.
    let mut instead: Vec<Vec<(usize, String)>> = vec![Vec::new(); bodies.len()];
    for (number, mutant) in mutants {
        let mutated = mutant.mutate(source)?;
        let begin = source.find(&mutant.replace).expect("it was just replaced");
        let end = begin + mutant.replace.len();
        let index = bodies.iter().position(|body| body.start < begin && end < body.end).ok_or_else(|| {
            let detail = format!("its text is not within the body of one function of {}", mutant.file.display());
            Error::Unfit { mutant: mutant.name.clone(), detail }
        })?;
        let Range { start, end } = bodies[index];
        let end = mutated.len() - (source.len() - end);
        instead[index].push((*number, mutated[start..end].to_string()));
    }
    let (mut switched, mut copied) = (String::new(), 0);
    for (body, instead) in bodies.into_iter().zip(instead).filter(|(_, instead)| !instead.is_empty()) {
        switched.push_str(&source[copied..body.start]);
        switched.push_str("{ ");
        for (number, body) in instead {
            switched.push_str(&format!("if crate::mutants::is_on({number}) {body} else "));
        }
        switched.push_str(&source[body.clone()]);
        switched.push_str(" }");
        copied = body.end;
    }
    switched.push_str(&source[copied..]);
    Ok(switched)
}

/// The byte ranges of functions' bodies, braces included. A nested function is part of the outer
/// one.
fn bodies(source: &str) -> Vec<Range<usize>> {
    let tokens: TokenStream = source.parse().expect("the protocol is written in Rust");
    let mut bodies = Vec::new();
    collect(tokens, &mut bodies);
    bodies
}

fn collect(tokens: TokenStream, bodies: &mut Vec<Range<usize>>) {
    let mut tokens = tokens.into_iter().peekable();
    let mut in_signature = false;
    while let Some(token) = tokens.next() {
        match token {
            // A function has a name; a function type has none.
            TokenTree::Ident(word) if word == "fn" => {
                in_signature = matches!(tokens.peek(), Some(TokenTree::Ident(_)));
            }
            TokenTree::Punct(mark) if mark.as_char() == ';' => in_signature = false,
            TokenTree::Group(group) if group.delimiter() == Delimiter::Brace && in_signature => {
                bodies.push(group.span().byte_range());
                in_signature = false;
            }
            TokenTree::Group(group) if !in_signature => collect(group.stream(), bodies),
            _ => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SOURCE: &str = "
        //! Ünïcödé { fn before }
        trait One { fn bare(&self) -> u8; fn given(&self) -> u8 { 1 } }
        impl One for () {
            fn bare(&self) -> u8 where u8: Copy {
                fn inner(of: fn(u8) -> u8) -> u8 { of(2) }
                inner(|x| { x + 3 })
            }
        }
        const FOUR: u8 = { 4 };
        mod within { pub(crate) fn five() -> char { '}' } }
    ";

    fn mutant(name: &str, replace: &str, with: &str) -> Mutant {
        Mutant {
            name: name.to_string(),
            why: String::new(),
            file: "file.rs".into(),
            replace: replace.to_string(),
            with: with.to_string(),
            model: String::new(),
            property: String::new(),
        }
    }

    #[test]
    fn only_outermost_function_bodies_are_found() {
        let bodies: Vec<_> = bodies(SOURCE).into_iter().map(|body| &SOURCE[body]).collect();
        let long = SOURCE.find("{\n                fn inner").unwrap()..SOURCE.find("}\n        }\n").unwrap() + 1;
        assert_eq!(bodies, ["{ 1 }", &SOURCE[long], "{ '}' }"]);
    }

    #[test]
    fn mutated_body_becomes_a_choice() {
        let (one, two, five) =
            (mutant("a", "{ 1 }", "{ 10 }"), mutant("b", "of(2)", "of(22)"), mutant("c", "'}'", "'x'"));
        let three = mutant("d", "x + 3", "x");
        let wide = mutant("e", " 1 ", " 100 ");
        let mutants = [(1, &wide), (2, &two), (3, &five), (7, &three)];
        let switched = with_switches(SOURCE, &mutants).unwrap();
        assert!(switched.contains("fn given(&self) -> u8 { if crate::mutants::is_on(1) { 100 } else { 1 } } }"));
        assert!(switched.contains("five() -> char { if crate::mutants::is_on(3) { 'x' } else { '}' } } }"));
        let changed = ["of(22)", "of(2)", "x + 3", "{ x }"].map(|text| switched.matches(text).count());
        assert_eq!(changed, [1, 2, 2, 1], "each change is alone in its body");
        assert!(with_switches(SOURCE, &[(1, &one)]).is_err(), "a whole body is no part of it");
    }

    #[test]
    fn text_outside_of_functions_is_rejected() {
        let refused = with_switches(SOURCE, &[(1, &mutant("four", "{ 4 }", "{ 5 }"))]).unwrap_err().to_string();
        assert!(refused.contains("four: its text is not within the body of one function of file.rs"), "{refused}");
    }

    #[test]
    fn source_without_mutants_is_unchanged() {
        assert_eq!(with_switches(SOURCE, &[]).unwrap(), SOURCE);
        assert!(SWITCHES.contains(ON));
    }
}
