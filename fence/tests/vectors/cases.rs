//! The cases: what a verifier is given, and what it must answer.

use serde_json::{Value, json};

use crate::forge::{
    BEGIN, Certificate, END, GRANT_DOMAIN, Grant, id, id_of, key, root_text, signed, text, token, with_larger_scalar,
    with_unused_bits,
};

/// One token for one verifier.
pub(crate) struct Case {
    name: &'static str,
    roots: Vec<String>,
    refused: Vec<String>,
    now: Option<u64>,
    key: String,
    signed: String,
    result: &'static str,
    grant: Option<Grant>,
}

impl Case {
    /// The verifier is of cluster `billing` and lock `report`, trusts root 1, and has a clock.
    fn new(name: &'static str, result: &'static str, signed: String) -> Case {
        let roots = vec![root_text(&key(1))];
        let (refused, now, key) = (Vec::new(), Some(BEGIN + 1000), "report".to_owned());
        Case { name, roots, refused, now, key, signed, result, grant: None }
    }

    /// A genuine token of this grant.
    fn genuine(name: &'static str, grant: Grant) -> Case {
        let certificate = Certificate { epoch: grant.epoch, ..Certificate::of(&key(2), &key(1)) };
        let signed = token(&grant.signed_by(&key(2)), &certificate.signed_by(&key(1)));
        let key = String::from_utf8(grant.key.clone()).unwrap();
        Case { grant: Some(grant), key, ..Case::new(name, "ok", signed) }
    }

    fn at(self, now: Option<u64>) -> Case {
        Case { now, ..self }
    }

    pub(crate) fn json(&self) -> Value {
        let mut value = json!({
            "name": self.name,
            "cluster": "billing",
            "roots": self.roots,
            "refused": self.refused,
            "now": self.now.map(|now| now.to_string()),
            "key": self.key,
            "signed": self.signed,
            "result": self.result,
        });
        if let Some(grant) = &self.grant {
            value["epoch"] = json!(grant.epoch.to_string());
            value["token"] = json!(grant.token.to_string());
            value["session"] = json!(grant.session.to_string());
        }
        value
    }
}

fn hex(id: [u8; 8]) -> String {
    format!("{:016x}", u64::from_be_bytes(id))
}

pub(crate) fn cases() -> Vec<Case> {
    let mut cases = genuine();
    cases.extend(encodings());
    cases.extend(certificates());
    cases.extend(grants());
    cases
}

fn genuine() -> Vec<Case> {
    let grant = || Grant::by(&key(2), 7, 3);
    let named = |name, key: &str| Case::genuine(name, Grant { key: key.as_bytes().to_vec(), ..grant() });
    let mut rotated = Case::genuine("the second of two trusted roots", grant());
    rotated.roots.insert(0, root_text(&key(9)));
    vec![
        Case::genuine("genuine", grant()),
        Case::genuine("genuine, the highest token there is", Grant::by(&key(2), u64::MAX, u64::MAX)),
        Case::genuine("genuine, token above 2^53", Grant::by(&key(2), (1 << 53) + 1, 1)),
        Case::genuine("genuine, restore epoch 3", Grant { epoch: 3, ..grant() }),
        named("genuine, key with a slash and an umlaut", "reports/ä"),
        named("genuine, key that begins with a byte order mark", "\u{feff}report"),
        named("genuine, key with a zero byte", "a\0b"),
        named("genuine, key of 512 bytes", &"k".repeat(512)),
        rotated,
        Case::genuine("first second of the window", grant()).at(Some(BEGIN)),
        Case::genuine("last second of the window", grant()).at(Some(END - 1)),
        Case::genuine("no clock", grant()).at(None),
    ]
}

fn encodings() -> Vec<Case> {
    let certificate = Certificate::of(&key(2), &key(1)).signed_by(&key(1));
    let grant = Grant::by(&key(2), 7, 3);
    let bytes = grant.signed_by(&key(2));
    let good = token(&bytes, &certificate);
    let malformed = |name, signed: String| Case::new(name, "malformed", signed);
    let payload = |change: fn(&mut Vec<u8>)| {
        let mut payload = Grant::by(&key(2), 7, 3).payload();
        change(&mut payload);
        token(&signed(GRANT_DOMAIN, &payload, &key(2)), &certificate)
    };
    let mut many = (0..).map(|session| token(&Grant::by(&key(2), 7, session).signed_by(&key(2)), &certificate));
    let other_alphabet = many.find(|text| text.contains('-')).unwrap().replace('-', "+");
    let of_key = |key_bytes: &[u8]| {
        let grant = Grant { key: key_bytes.to_vec(), ..Grant::by(&key(2), 7, 3) };
        token(&grant.signed_by(&key(2)), &certificate)
    };
    vec![
        malformed("empty", String::new()),
        malformed("a bare token", u64::MAX.to_string()),
        Case::new("a later version of the format", "unknown_version", good.replacen("fence1", "fence2", 1)),
        malformed("upper-case prefix", good.replacen("fence1", "FENCE1", 1)),
        malformed("no prefix", good.replacen("fence1.", "", 1)),
        malformed("no certificate", format!("fence1.{}", text(&bytes))),
        malformed("empty certificate", format!("fence1.{}.", text(&bytes))),
        malformed("a third part", format!("{good}.AAAA")),
        malformed("a line break at the end", format!("{good}\n")),
        malformed("a space before", format!(" {good}")),
        malformed("padding in the grant", format!("fence1.{}==.{certificate}", text(&bytes))),
        malformed("unused bits in the grant", format!("fence1.{}.{certificate}", with_unused_bits(&text(&bytes)))),
        malformed(
            "unused bits in the certificate",
            format!("fence1.{}.{}", text(&bytes), with_unused_bits(&certificate)),
        ),
        malformed("the standard base64 alphabet", other_alphabet),
        malformed("one character too few", good[..good.len() - 1].to_owned()),
        malformed("one byte more than the fields, and signed", payload(|payload| payload.push(0))),
        malformed(
            "one byte less than the fields, and signed",
            payload(|payload| {
                payload.pop();
            }),
        ),
        malformed("only a signature", token(&[0; 64], &certificate)),
        malformed("less than a signature", token(&[0; 63], &certificate)),
        malformed("an empty key", of_key(b"")),
        malformed("a key that is not UTF-8", of_key(b"repor\xff")),
        malformed("a key with a UTF-16 surrogate", of_key(b"\xed\xa0\x80")),
    ]
}

fn certificates() -> Vec<Case> {
    let own = Certificate::of(&key(2), &key(1));
    let grant = Grant::by(&key(2), 7, 3).signed_by(&key(2));
    let with = |name, result, certificate: &Certificate, by: u8| {
        Case::new(name, result, token(&grant, &certificate.signed_by(&key(by))))
    };
    let test = Grant { cluster: "test", ..Grant::by(&key(2), 7, 3) }.signed_by(&key(2));
    let of_test = Certificate { cluster: "test", ..own.clone() }.signed_by(&key(1));
    let mut refused = with("a refused signing key", "refused_key", &own, 1);
    refused.refused.push(hex(id_of(&key(2))));
    let mut other_refused = Case::genuine("another key is refused", Grant::by(&key(2), 7, 3));
    other_refused.refused.push(hex(id_of(&key(4))));
    let mut longer = own.payload();
    longer.push(0);
    let longer = text(&signed(b"palisade fence 1 certificate\0", &longer, &key(1)));
    vec![
        with("a root that is not trusted", "unknown_root", &Certificate::of(&key(2), &key(9)), 9),
        with("a certificate that another key signed", "forged_certificate", &own, 9),
        with("a certificate that its own key signed", "forged_certificate", &own, 2),
        Case::new("a grant's signature under a certificate", "forged_certificate", {
            token(&grant, &text(&signed(GRANT_DOMAIN, &own.payload(), &key(1))))
        }),
        Case::new("a certificate with one byte more", "malformed", token(&grant, &longer)),
        Case::new("grant and certificate of another cluster", "wrong_cluster", token(&test, &of_test)),
        with("a certificate of another cluster", "wrong_cluster", &Certificate { cluster: "billin", ..own.clone() }, 1),
        Case::new("a grant of another cluster than its certificate", "certificate_of_another_cluster", {
            token(&test, &own.signed_by(&key(1)))
        }),
        with(
            "a certificate of another epoch",
            "certificate_of_another_epoch",
            &Certificate { epoch: 1, ..own.clone() },
            1,
        ),
        with("one second before the window", "not_yet_valid", &own, 1).at(Some(BEGIN - 1)),
        with("one second after the window", "expired", &own, 1).at(Some(END)),
        with("a clock at 1970", "not_yet_valid", &own, 1).at(Some(0)),
        refused,
        other_refused,
        with("a certificate of another key", "other_key", &Certificate::of(&key(3), &key(1)), 1),
        unsafe_key("a key of order 1", &format!("01{}", "00".repeat(31))),
        unsafe_key("a key of order 4", &"00".repeat(32)),
        unsafe_key("a key of order 8", "26e8958fc2b227b045c3f489f2ef98f0d5dfac05d3c63339b13802886d53fc05"),
        unsafe_key("a key of order 1 that is not reduced", &format!("ee{}7f", "ff".repeat(30))),
        unsafe_key("a key that is not reduced", &format!("f0{}7f", "ff".repeat(30))),
        unsafe_key("a key that is no point", &format!("02{}", "00".repeat(31))),
    ]
}

/// A certificate of a key that no verifier may accept, beside R = identity, S = 0: with the identity
/// as the key, that is a valid signature of every message.
fn unsafe_key(name: &'static str, public_key: &str) -> Case {
    let byte = |index: usize| u8::from_str_radix(&public_key[2 * index..2 * index + 2], 16).unwrap();
    let public_key: [u8; 32] = std::array::from_fn(byte);
    let certificate = Certificate { public_key, ..Certificate::of(&key(2), &key(1)) };
    let mut bytes = Grant { key_id: id(&public_key), ..Grant::by(&key(2), 7, 3) }.payload();
    bytes.push(1);
    bytes.extend([0; 63]);
    Case::new(name, "unsafe_key", token(&bytes, &certificate.signed_by(&key(1))))
}

fn grants() -> Vec<Case> {
    let certificate = Certificate::of(&key(2), &key(1)).signed_by(&key(1));
    let honest = Grant::by(&key(2), 7, 3);
    let bytes = honest.signed_by(&key(2));
    let signature = &bytes[bytes.len() - 64..];
    let forged = |name, bytes: &[u8]| Case::new(name, "forged", token(bytes, &certificate));
    let changed = |name, grant: &Grant| forged(name, &[&grant.payload(), signature].concat());
    let mut flipped = bytes.clone();
    *flipped.last_mut().unwrap() ^= 1;
    let mut elsewhere = Case::new("replayed at another key", "wrong_key", token(&bytes, &certificate));
    elsewhere.key = "reports".to_owned();
    vec![
        changed("the liar's token 2^64-1 under the signature of token 7", &Grant { token: u64::MAX, ..honest.clone() }),
        changed("another session under the signature", &Grant { session: 4, ..honest.clone() }),
        changed("another key under the signature", &Grant { key: b"repors".to_vec(), ..honest.clone() }),
        forged("signature of zeros", &[honest.payload().as_slice(), &[0; 64]].concat()),
        forged("one bit of the signature", &flipped),
        forged("a scalar beyond the group's order", &with_larger_scalar(&bytes)),
        forged("signed by another key", &honest.signed_by(&key(3))),
        forged("signed without the domain", &signed(b"", &honest.payload(), &key(2))),
        forged("signed as a certificate", &signed(b"palisade fence 1 certificate\0", &honest.payload(), &key(2))),
        elsewhere,
    ]
}

/// A resource that sees several tokens one after the other, with what it must answer: `raise`,
/// `repeat`, or a refusal.
pub(crate) fn histories() -> Vec<Value> {
    let step = |signer: u8, epoch: u64, lock: &str, number: u64, session: u64, result: &str| {
        let grant = Grant { epoch, key: lock.as_bytes().to_vec(), ..Grant::by(&key(signer), number, session) };
        let certificate = Certificate { epoch, ..Certificate::of(&key(signer), &key(1)) }.signed_by(&key(1));
        json!({ "key": lock, "signed": token(&grant.signed_by(&key(signer)), &certificate), "result": result })
    };
    let history = |name: &str, steps: Vec<Value>| {
        let now = (BEGIN + 1000).to_string();
        json!({ "name": name, "cluster": "billing", "roots": [root_text(&key(1))], "now": now, "steps": steps })
    };
    vec![
        history(
            "tokens rise",
            vec![
                step(2, 0, "report", 7, 3, "raise"),
                step(2, 0, "report", 7, 3, "repeat"),
                step(2, 0, "report", 9, 4, "raise"),
                step(2, 0, "report", 7, 3, "stale_token"),
                step(2, 0, "report", 9, 4, "repeat"),
            ],
        ),
        history(
            "keys are apart",
            vec![
                step(2, 0, "report", 9, 4, "raise"),
                step(2, 0, "other", 8, 3, "raise"),
                step(2, 0, "report", 8, 3, "stale_token"),
            ],
        ),
        history(
            "another node signs after a change of leader",
            vec![
                step(2, 0, "report", 7, 3, "raise"),
                step(3, 0, "report", 7, 3, "repeat"),
                step(3, 0, "report", 8, 4, "raise"),
                step(2, 0, "report", 7, 3, "stale_token"),
            ],
        ),
        history(
            "one token, two sessions",
            vec![
                step(2, 0, "report", 7, 3, "raise"),
                step(2, 0, "report", 7, 4, "token_of_another_session"),
                step(2, 0, "report", 7, 3, "repeat"),
            ],
        ),
        history(
            "a restored cluster",
            vec![
                step(2, 0, "report", 900, 3, "raise"),
                step(2, 0, "other", 901, 4, "raise"),
                step(3, 1, "report", 20, 9, "raise"),
                step(2, 0, "report", 902, 5, "stale_epoch"),
                step(2, 0, "other", 901, 4, "stale_epoch"),
                step(3, 1, "other", 21, 9, "raise"),
                step(3, 1, "report", 19, 8, "stale_token"),
            ],
        ),
    ]
}
