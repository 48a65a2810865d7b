//! Match strings and personalities: the golden table.

use vdk_driver::hal::function::PciIdentity;
use vdk_driver::kit::{Alternative, MatchKey, MatchString, ParseMatchError, PciMatch, Personality};

/// Device 2021 of vendor 8086, subsystem 0042 of 1af4, class 088000 revision 07.
const IOAT: PciIdentity = PciIdentity {
    vendor: 0x8086,
    device: 0x2021,
    revision: 0x07,
    class: 0x088000,
    subsystem_vendor: 0x1af4,
    subsystem: 0x0042,
};

fn text(text: &'static str) -> MatchString {
    MatchString::new(text).unwrap()
}

#[test]
fn match_strings_follow_the_golden_table() {
    use MatchKey::{Class, Either, Primary, Secondary};
    let table: &[(MatchKey, &'static str, bool)] = &[
        // The value is the whole register: device above vendor.
        (Primary, "0x20218086", true),
        (Primary, "20218086", true),
        (Primary, "0X20218086", true),
        (Primary, "0x80862021", false),
        // The primary key looks at register 0x00 only, the secondary at 0x2c only.
        (Primary, "0x00421af4", false),
        (Secondary, "0x00421af4", true),
        (Secondary, "0x20218086", false),
        (Secondary, "0x421af4", true),
        // Either looks at both.
        (Either, "0x20218086", true),
        (Either, "0x00421af4", true),
        (Either, "0x00421af5", false),
        // Alternatives, separated by any number of spaces.
        (Primary, "0x11111111 0x20218086", true),
        (Primary, "  0x11111111   0x22222222  ", false),
        (Primary, "0x20218086 ", true),
        // A mask: both sides are masked, so bits outside it may be anything.
        (Primary, "0x20200000&0xfff00000", true),
        (Primary, "0x2021ffff&0xffff0000", true),
        (Primary, "0x00008086&0x0000ffff", true),
        (Primary, "0x00008086&0xffff", true),
        (Primary, "0x00008087&0xffff", false),
        (Primary, "0x0&0x0", true),
        (Primary, "1&2 0x2&0x2", true),
        // Without a mask every bit of an ID counts.
        (Primary, "0x8086", false),
        // The class key leaves the revision out, unless the mask says otherwise.
        (Class, "0x08800000", true),
        (Class, "0x088000ff", true),
        (Class, "0x08800100", false),
        (Class, "0x08800007&0xffffffff", true),
        (Class, "0x08800008&0xffffffff", false),
        (Class, "0x08000000&0xff000000", true),
        (Class, "0x02000000&0xff000000", false),
        (Class, "0x02000000&0xff000000 0x08000000&0xff000000", true),
    ];
    for &(key, string, expected) in table {
        let hit = PciMatch::new().with(key, text(string)).evaluate(&IOAT);
        assert_eq!(hit.is_ok(), expected, "{key} \"{string}\": {hit:?}");
    }
}

#[test]
fn every_key_has_to_match() {
    let both = PciMatch::new().primary("0x20218086").class("0x08800000");
    assert!(both.evaluate(&IOAT).is_ok());
    let one_wrong = both.secondary("0x00010002 0x00030004");
    let miss = one_wrong.evaluate(&IOAT).unwrap_err();
    assert_eq!(
        miss.to_string(),
        "key secondary wants \"0x00010002 0x00030004\" but register 0x2c is 0x00421af4"
    );
    let miss = PciMatch::new().either("0x1").evaluate(&IOAT).unwrap_err();
    assert_eq!(
        miss.to_string(),
        "key either wants \"0x1\" but register 0x00 is 0x20218086 and register 0x2c is 0x00421af4"
    );
    let miss = PciMatch::new().class("0x02000000").evaluate(&IOAT).unwrap_err();
    assert_eq!(miss.to_string(), "key class wants \"0x02000000\" but register 0x08 is 0x08800007");
}

#[test]
fn only_a_primary_hit_of_the_either_key_scores_a_thousand() {
    let score = |matching: PciMatch| Personality::new("p", matching).score(7).rank(&IOAT).unwrap().score;
    assert_eq!(score(PciMatch::new().either("0x20218086")), 1007);
    assert_eq!(score(PciMatch::new().either("0x00421af4")), 7);
    assert_eq!(score(PciMatch::new().either("0x00421af4 0x20218086")), 1007);
    assert_eq!(score(PciMatch::new().primary("0x20218086")), 7);
    assert_eq!(score(PciMatch::new().secondary("0x00421af4")), 7);
    assert_eq!(score(PciMatch::new().class("0x08800000")), 7);
    let most = Personality::new("p", PciMatch::new().either("0x20218086")).score(i32::MAX);
    assert_eq!(most.rank(&IOAT).unwrap().score, i32::MAX, "no overflow");
}

#[test]
fn ties_go_to_the_more_specific_match_and_then_to_the_first_name() {
    let rank = |name, score, matching| Personality::new(name, matching).score(score).rank(&IOAT).unwrap();
    let exact = PciMatch::new().primary("0x20218086");
    let vendor = PciMatch::new().primary("0x8086&0xffff");
    let exact_and_class = exact.class("0x08000000&0xff000000");
    assert_eq!(rank("a", 0, exact).specificity, 32);
    assert_eq!(rank("a", 0, vendor).specificity, 16);
    assert_eq!(rank("a", 0, exact_and_class).specificity, 40);
    // The best of the alternatives that hit counts, wherever it stands.
    assert_eq!(rank("a", 0, PciMatch::new().primary("0x8086&0xffff 0x20218086 1")).specificity, 32);

    assert!(rank("z", 1, vendor) > rank("a", 0, exact_and_class), "score first");
    assert!(rank("z", 0, exact_and_class) > rank("a", 0, exact), "then specificity");
    assert!(rank("a", 0, exact) > rank("b", 0, exact), "then the name");
    assert_eq!(rank("b", -1000, PciMatch::new().either("0x20218086")).to_string(), "b (score 0, 32 bits)");
}

#[test]
fn parse_errors_say_where() {
    use ParseMatchError::{Empty, ExpectedDigit, ExpectedEnd, TooLarge};
    let table = [
        ("", Empty),
        ("   ", Empty),
        ("0x", ExpectedDigit { position: 2 }),
        ("x", ExpectedDigit { position: 0 }),
        ("0x12345678 0x", ExpectedDigit { position: 13 }),
        ("0x1&", ExpectedDigit { position: 4 }),
        ("0x1& 0x2", ExpectedDigit { position: 4 }),
        ("&0x1", ExpectedDigit { position: 0 }),
        ("-1", ExpectedDigit { position: 0 }),
        ("0x1&&0x2", ExpectedDigit { position: 4 }),
        ("0x12g4", ExpectedEnd { position: 4 }),
        ("0x1,0x2", ExpectedEnd { position: 3 }),
        ("0x1\t0x2", ExpectedEnd { position: 3 }),
        ("0x1&0x2&0x3", ExpectedEnd { position: 7 }),
        ("0x1 & 0x2", ExpectedDigit { position: 4 }),
        ("0x1234567890", TooLarge { position: 10 }),
        ("1&0x100000000", TooLarge { position: 12 }),
        ("0x\u{663}", ExpectedDigit { position: 2 }),
    ];
    for (string, error) in table {
        assert_eq!(MatchString::new(string), Err(error), "{string:?}");
    }
    assert_eq!(
        MatchString::new("0x12g4").unwrap_err().to_string(),
        "byte 4 of the match string: expected a space, or & and a mask"
    );
    // Leading zeros do not make a number too large.
    let alternatives: Vec<_> =
        text("0x0000000012345678&00000000ff 7").alternatives(MatchKey::Class).collect();
    let first = Alternative { value: 0x1234_5678, mask: 0xff };
    assert_eq!(alternatives, [first, Alternative { value: 7, mask: 0xffff_ff00 }]);
}

mod properties {
    use proptest::prelude::*;

    use super::*;

    /// The rule in one line, on the parsed parts instead of the text.
    fn oracle(alternatives: &[(u32, Option<u32>)], register: u32, default_mask: u32) -> bool {
        alternatives.iter().any(|(value, mask)| (register ^ value) & mask.unwrap_or(default_mask) == 0)
    }

    proptest! {
        #[test]
        fn any_list_of_alternatives_means_what_it_says(
            alternatives in prop::collection::vec((any::<u32>(), prop::option::of(any::<u32>())), 1..6),
            near in any::<prop::sample::Index>(),
            flip in 0..40u32,
            prefix in any::<bool>(),
        ) {
            let x = if prefix { "0x" } else { "" };
            let words: Vec<_> = alternatives
                .iter()
                .map(|(value, mask)| match mask {
                    Some(mask) => format!("{x}{value:x}&{x}{mask:X}"),
                    None => format!("{x}{value:08x}"),
                })
                .collect();
            let string: &'static str = Box::leak(words.join(" ").into_boxed_str());
            // One of the values, with at most one bit changed: close calls are the interesting ones.
            let register = near.get(&alternatives).0 ^ 1u32.checked_shl(flip).unwrap_or(0);
            let identity = PciIdentity {
                vendor: (register & 0xffff) as u16,
                device: (register >> 16) as u16,
                class: register >> 8,
                revision: (register & 0xff) as u8,
                ..PciIdentity::default()
            };
            for key in [MatchKey::Primary, MatchKey::Class] {
                let hit = PciMatch::new().with(key, text(string)).evaluate(&identity);
                prop_assert_eq!(hit.is_ok(), oracle(&alternatives, register, key.default_mask()));
            }
        }

        #[test]
        fn no_text_makes_the_parser_panic(string in "[0-9a-fx& ]{0,24}|.{0,12}") {
            let string: &'static str = Box::leak(string.into_boxed_str());
            if let Ok(parsed) = MatchString::new(string) {
                prop_assert!(parsed.alternatives(MatchKey::Primary).count() > 0);
            }
        }
    }
}
