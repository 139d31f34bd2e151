//! `Sec-WebSocket-Protocol`: the one header of a WebSocket that a web page can write. So it is there that a page states its
//! bearer token, as `bearer.TOKEN` beside the name of this service's [`PROTOCOL`].

use axum::http::header::{AUTHORIZATION, SEC_WEBSOCKET_PROTOCOL};
use axum::http::{HeaderMap, HeaderValue};

/// What a client may offer, and the server then accepts. A browser ends a connection whose server accepts none of the
/// protocols that the page has offered.
pub(super) const PROTOCOL: &str = "palisade";

/// What stands before a token, in upper or lower case.
const BEARER: &[u8] = b"bearer.";

/// Moves the bearer token from the offered protocols to `Authorization`, where requests that are no page's have it. A client
/// that sends this header means it, and not the offer; of several tokens the first one counts.
pub(super) fn move_token(headers: &mut HeaderMap) {
    let offered: Vec<HeaderValue> = headers.get_all(SEC_WEBSOCKET_PROTOCOL).iter().cloned().collect();
    let offered = offered.iter().flat_map(|value| value.as_bytes().split(|byte| *byte == b',')).map(<[u8]>::trim_ascii);
    let (tokens, protocols): (Vec<&[u8]>, Vec<&[u8]>) = offered.partition(|protocol| token(protocol).is_some());
    let Some(token) = tokens.first().and_then(|protocol| token(protocol)) else { return };

    let value = |bytes: Vec<u8>| HeaderValue::try_from(bytes).expect("it is made of headers");
    headers.remove(SEC_WEBSOCKET_PROTOCOL);
    if !protocols.is_empty() {
        headers.insert(SEC_WEBSOCKET_PROTOCOL, value(protocols.join(&b", "[..])));
    }
    if !headers.contains_key(AUTHORIZATION) {
        let mut authorization = value([b"Bearer ", token].concat());
        authorization.set_sensitive(true);
        headers.insert(AUTHORIZATION, authorization);
    }
}

/// The token, if the protocol is one.
fn token(protocol: &[u8]) -> Option<&[u8]> {
    let (start, token) = protocol.split_at_checked(BEARER.len())?;
    start.eq_ignore_ascii_case(BEARER).then_some(token)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What becomes of these offers, and of this `Authorization`: the same headers, as texts.
    fn moved(offers: &[&'static str], authorization: Option<&'static str>) -> (Vec<String>, Option<String>) {
        let mut headers = HeaderMap::new();
        for offer in offers {
            headers.append(SEC_WEBSOCKET_PROTOCOL, HeaderValue::from_static(offer));
        }
        if let Some(authorization) = authorization {
            headers.insert(AUTHORIZATION, HeaderValue::from_static(authorization));
        }
        move_token(&mut headers);
        let text = |value: &HeaderValue| value.to_str().unwrap().to_owned();
        (headers.get_all(SEC_WEBSOCKET_PROTOCOL).iter().map(text).collect(), headers.get(AUTHORIZATION).map(text))
    }

    /// Goal: the token of a page counts as one in `Authorization`, and goes no further than this node; the protocols that
    /// are none stay.
    #[test]
    fn token_of_a_page_is_its_authorization() {
        let bearer = |token: &str| Some(format!("Bearer {token}"));
        assert_eq!(moved(&["palisade, bearer.ab12"], None), (vec!["palisade".into()], bearer("ab12")));
        assert_eq!(moved(&["bearer.ab12"], None), (vec![], bearer("ab12")));
        assert_eq!(moved(&["bearer.1,bearer.2", "x ,palisade"], None), (vec!["x, palisade".into()], bearer("1")));
        assert_eq!(moved(&["Bearer.ab12 ,palisade"], None), (vec!["palisade".into()], bearer("ab12")));
        assert_eq!(moved(&["palisade, bearer."], None), (vec!["palisade".into()], bearer("")));
        assert_eq!(moved(&["palisade, bearer.ab12"], Some("Bearer 7")), (vec!["palisade".into()], bearer("7")));
    }

    /// Goal: what is no text leaves no token behind, and nothing else out.
    #[test]
    fn token_among_other_bytes_is_found() {
        let mut headers = HeaderMap::new();
        headers.append(SEC_WEBSOCKET_PROTOCOL, HeaderValue::from_bytes(b"palisade, bearer.7, \xe9").unwrap());
        headers.append(SEC_WEBSOCKET_PROTOCOL, HeaderValue::from_bytes(b"\xff").unwrap());
        move_token(&mut headers);
        assert_eq!(headers[SEC_WEBSOCKET_PROTOCOL].as_bytes(), b"palisade, \xe9, \xff");
        assert_eq!(headers[AUTHORIZATION], "Bearer 7");
    }

    #[test]
    fn other_offers_are_left_as_they_are() {
        assert_eq!(moved(&[], Some("Bearer 7")), (vec![], Some("Bearer 7".into())));
        assert_eq!(moved(&["a,b", "palisade"], None), (vec!["a,b".into(), "palisade".into()], None));
        assert_eq!(moved(&["notbearer.x"], None), (vec!["notbearer.x".into()], None));
    }
}
