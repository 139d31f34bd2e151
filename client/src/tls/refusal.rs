//! Explains a failed TLS connection in a sentence for people: which of the two sides refuses which certificate, and the
//! reason.

use std::io;

use tokio_rustls::rustls::{AlertDescription, CertificateError, Error};

/// The other side of a connection, for sentences about it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Side {
    /// It was dialled.
    Server,
    /// It dialled.
    Client,
}

/// The sentence for an error of a connection, if it is one of TLS. `None` for every other error of the network.
///
/// A number that the other side chooses is in no sentence: a node logs each sentence, and a program without a
/// certificate could make up as many as there are numbers.
pub fn explain(error: &io::Error, other: Side) -> Option<String> {
    let error = error.get_ref()?.downcast_ref::<Error>()?;
    Some(match error {
        Error::NoCertificatesPresented => "it presented no certificate".into(),
        Error::InvalidCertificate(reason) => format!("its certificate {}", refused(reason)),
        Error::AlertReceived(alert) => received(*alert),
        Error::InvalidMessage(_) | Error::InappropriateMessage { .. } => match other {
            Side::Server => "it does not speak TLS, or something between the two changes what it says".into(),
            Side::Client => "it does not speak TLS, which this port requires".into(),
        },
        Error::InappropriateHandshakeMessage { .. } => "it sent a message of TLS's handshake out of turn".into(),
        Error::PeerIncompatible(reason) => format!("it does not speak TLS 1.3: {reason:?}"),
        other => format!("the TLS connection failed: {other}"),
    })
}

/// What this side has against the other side's certificate.
fn refused(reason: &CertificateError) -> String {
    match reason {
        CertificateError::Expired | CertificateError::ExpiredContext { .. } => {
            "has expired by this machine's clock: issue a new one, or correct the clock".into()
        }
        CertificateError::NotValidYet | CertificateError::NotValidYetContext { .. } => {
            "is not valid yet: compare the clocks of the two machines".into()
        }
        // A CA of the same name, with another key, has signed it.
        CertificateError::UnknownIssuer | CertificateError::BadSignature => "was issued by another CA".into(),
        CertificateError::NotValidForNameContext { expected, presented } => {
            format!("does not name the host {}, only: {}", expected.to_str(), presented.join(", "))
        }
        CertificateError::NotValidForName => "does not name the host that was dialled".into(),
        CertificateError::InvalidPurpose | CertificateError::InvalidPurposeContext { .. } => {
            "was issued for another purpose: a client's certificate is none of a node".into()
        }
        CertificateError::UnsupportedSignatureAlgorithmContext { .. }
        | CertificateError::UnsupportedSignatureAlgorithmForPublicKeyContext { .. } => {
            "is signed by an algorithm that this side does not support".into()
        }
        other => format!("is refused: {other}"),
    }
}

/// What the other side has against this side.
fn received(alert: AlertDescription) -> String {
    match alert {
        AlertDescription::CertificateExpired => {
            // TLS has one alert for both.
            "it refuses this side's certificate: it has expired, or is not valid yet, by the other machine's clock"
                .into()
        }
        AlertDescription::UnknownCA | AlertDescription::DecryptError => {
            "it refuses this side's certificate: another CA issued it".into()
        }
        AlertDescription::CertificateRequired => "it requires a certificate, and this side presented none".into(),
        AlertDescription::BadCertificate
        | AlertDescription::UnsupportedCertificate
        | AlertDescription::CertificateUnknown
        | AlertDescription::CertificateRevoked
        | AlertDescription::AccessDenied => format!("it refuses this side's certificate ({alert:?})"),
        AlertDescription::Unknown(_) => "it ended the TLS connection with an alert that TLS does not have".into(),
        other => format!("it ended the TLS connection ({other:?})"),
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use tokio_rustls::rustls::HandshakeType;

    use super::*;

    /// The sentences for these errors of one that dials.
    fn sentences(errors: impl IntoIterator<Item = Error>) -> BTreeSet<String> {
        let errors = errors.into_iter().map(|error| io::Error::new(io::ErrorKind::InvalidData, error));
        errors.map(|error| explain(&error, Side::Client).unwrap()).collect()
    }

    /// Goal: a program without a certificate cannot make up a sentence for each number that it may send.
    #[test]
    fn numbers_of_the_other_side_are_in_no_sentence() {
        let unknown = (0..=u8::MAX).map(AlertDescription::Unknown).map(Error::AlertReceived);
        assert_eq!(sentences(unknown).len(), 1);
        let out_of_turn = (0..=u8::MAX).map(|code| Error::InappropriateHandshakeMessage {
            expect_types: vec![HandshakeType::ClientHello],
            got_type: HandshakeType::from(code),
        });
        assert_eq!(sentences(out_of_turn).len(), 1);
        let of_certificates = (0..=u8::MAX).flat_map(|code| {
            let signature_algorithm_id = vec![6, 1, code];
            let public_key_algorithm_id = signature_algorithm_id.clone();
            [
                CertificateError::UnsupportedSignatureAlgorithmContext {
                    signature_algorithm_id: signature_algorithm_id.clone(),
                    supported_algorithms: Vec::new(),
                },
                CertificateError::UnsupportedSignatureAlgorithmForPublicKeyContext {
                    signature_algorithm_id,
                    public_key_algorithm_id,
                },
            ]
        });
        assert_eq!(sentences(of_certificates.map(Error::InvalidCertificate)).len(), 1);
    }

    #[test]
    fn known_alerts_are_named() {
        let alerts = [AlertDescription::UnknownCA, AlertDescription::InternalError].map(Error::AlertReceived);
        let sentences = sentences(alerts).into_iter().collect::<Vec<_>>().join("; ");
        assert!(sentences.contains("another CA issued it") && sentences.contains("(InternalError)"), "{sentences}");
    }
}
