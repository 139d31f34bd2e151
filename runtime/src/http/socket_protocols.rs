//! `Sec-WebSocket-Protocol`: the one header of a WebSocket that a web page can write. So it is there that a page states its
//! bearer token, as `bearer.TOKEN` beside the name of this service's [`PROTOCOL`].

use axum::http::header::{AUTHORIZATION, SEC_WEBSOCKET_PROTOCOL};
use axum::http::{HeaderMap, HeaderValue};

/// What a client may offer, and the server then accepts. A browser ends a connection whose server accepts none of the
/// protocols that the page has offered.
pub(super) const PROTOCOL: &str = "palisade";

/// What stands before a token.
const BEARER: &str = "bearer.";

/// Moves the bearer token from the offered protocols to `Authorization`, where requests that are no page's have it. A client
/// that sends this header means it, and not the offer; of several tokens the first one counts.
pub(super) fn move_token(headers: &mut HeaderMap) {
    let offers = |value: &HeaderValue| value.to_str().is_ok_and(|offered| offered.contains(BEARER));
    if !headers.get_all(SEC_WEBSOCKET_PROTOCOL).iter().any(offers) {
        return;
    }
    let offered: Vec<HeaderValue> = headers.get_all(SEC_WEBSOCKET_PROTOCOL).iter().cloned().collect();
    let offered: Vec<&str> = offered.iter().filter_map(|value| value.to_str().ok()).collect();
    let offered = offered.iter().flat_map(|value| value.split(',')).map(str::trim);
    let (tokens, protocols): (Vec<&str>, Vec<&str>) = offered.partition(|protocol| protocol.starts_with(BEARER));

    let text = |text: String| HeaderValue::try_from(text).expect("it is part of a header");
    headers.remove(SEC_WEBSOCKET_PROTOCOL);
    if !protocols.is_empty() {
        headers.insert(SEC_WEBSOCKET_PROTOCOL, text(protocols.join(", ")));
    }
    if let Some(token) = tokens.first().filter(|_| !headers.contains_key(AUTHORIZATION)) {
        let mut authorization = text(format!("Bearer {}", &token[BEARER.len()..]));
        authorization.set_sensitive(true);
        headers.insert(AUTHORIZATION, authorization);
    }
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
        assert_eq!(moved(&["palisade, bearer."], None), (vec!["palisade".into()], bearer("")));
        assert_eq!(moved(&["palisade, bearer.ab12"], Some("Bearer 7")), (vec!["palisade".into()], bearer("7")));
    }

    #[test]
    fn other_offers_are_left_as_they_are() {
        assert_eq!(moved(&[], Some("Bearer 7")), (vec![], Some("Bearer 7".into())));
        assert_eq!(moved(&["a,b", "palisade"], None), (vec!["a,b".into(), "palisade".into()], None));
        assert_eq!(moved(&["notbearer.x"], None), (vec!["notbearer.x".into()], None));
    }
}
