//! Keeps the token for the store. Fetches the next token before the current one expires, or when the store refuses the
//! current one.

use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use azure_core::auth::{AccessToken, TokenCredential};
use azure_core::error::{Error, ErrorKind};
use azure_core::headers::AUTHORIZATION;
use azure_core::{HttpClient, Request, Response, StatusCode};
use futures::future::{BoxFuture, FutureExt as _, Shared, TryFutureExt as _};
use time::OffsetDateTime;
use tokio::task::AbortHandle;

use super::answers::{refusal, refuse_foreign};
use super::identity;

/// Remaining lifetime below which the next token is fetched. The current token stays in use meanwhile.
const AHEAD: Duration = Duration::from_secs(600);

/// All requests that wait for a fetch get the same result.
type Fetch = Shared<BoxFuture<'static, Fetched>>;

type Fetched = Result<AccessToken, Arc<Error>>;

type Source = dyn Fn(Vec<String>) -> BoxFuture<'static, Result<AccessToken, Error>> + Send + Sync;

pub(super) struct KeptToken {
    source: Box<Source>,
    state: Mutex<State>,
}

impl KeptToken {
    pub fn of_this_machine() -> Self {
        Self::from(Box::new(|scopes| Box::pin(identity::token(scopes))))
    }

    fn from(source: Box<Source>) -> Self {
        Self { source, state: Mutex::default() }
    }

    /// Discards `token`, which the store has refused, and fetches the next token immediately. The store may refuse an
    /// unexpired token, because this machine's clock is wrong or the token was revoked. Does nothing if `token` has
    /// already been replaced. Needs a Tokio runtime.
    pub fn refused(&self, token: &str) {
        let mut state = self.lock();
        if state.token.as_ref().is_some_and(|kept| kept.token.secret() == token) {
            state.token = None;
            if state.fetching.is_none() {
                drop(self.fetch(&mut state));
            }
        }
    }

    /// Returns a token or an error if one is available now. Otherwise, returns the fetch to wait for. If the token will
    /// expire soon, starts to fetch the next one.
    fn answer(&self, scopes: &[&str]) -> Result<Fetched, Fetch> {
        let mut state = self.lock();
        state.scopes = scopes.iter().map(|scope| (*scope).to_owned()).collect();
        if let Some(fetched) = state.fetching.clone().and_then(Fetch::now_or_never) {
            return Ok(state.take_in(fetched));
        }
        if let Some(token) = state.token_that_lasts(AHEAD) {
            return Ok(Ok(token));
        }
        let fetch = match &state.fetching {
            Some(fetch) => fetch.clone(),
            None => self.fetch(&mut state),
        };
        state.token_that_lasts(Duration::ZERO).map(Ok).ok_or(fetch)
    }

    fn fetch(&self, state: &mut State) -> Fetch {
        let task = tokio::spawn((self.source)(state.scopes.clone()));
        state.task = Some(task.abort_handle());
        // If the source panics, the fetch counts as failed.
        let fetched = async { task.await.unwrap_or_else(|error| Err(Error::new(ErrorKind::Credential, error))) };
        let fetch = fetched.map_err(Arc::new).boxed().shared();
        state.fetching = Some(fetch.clone());
        fetch
    }

    pub fn is_awaited(&self) -> bool {
        let state = self.lock();
        state.fetching.is_some() && state.token_that_lasts(Duration::ZERO).is_none()
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[derive(Default)]
struct State {
    token: Option<AccessToken>,
    fetching: Option<Fetch>,
    task: Option<AbortHandle>,
    scopes: Vec<String>,
}

impl State {
    fn token_that_lasts(&self, least: Duration) -> Option<AccessToken> {
        self.token.clone().filter(|token| token.expires_on - OffsetDateTime::now_utc() > least)
    }

    /// Stores the result of a fetch. If the fetch failed, the previous token stays in use until it expires.
    fn take_in(&mut self, fetched: Fetched) -> Fetched {
        self.fetching = None;
        match fetched {
            Ok(token) => Ok(self.token.insert(token).clone()),
            Err(error) => self.token_that_lasts(Duration::ZERO).ok_or(error),
        }
    }
}

impl fmt::Debug for KeptToken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("KeptToken")
    }
}

impl Drop for KeptToken {
    fn drop(&mut self) {
        if let Some(task) = &self.state.get_mut().unwrap_or_else(PoisonError::into_inner).task {
            task.abort();
        }
    }
}

#[async_trait::async_trait]
impl TokenCredential for KeptToken {
    async fn get_token(&self, scopes: &[&str]) -> azure_core::Result<AccessToken> {
        let answer = match self.answer(scopes) {
            Ok(answer) => answer,
            Err(fetch) => {
                let fetched = fetch.clone().await;
                let mut state = self.lock();
                // Another waiting request may already have stored the result.
                let is_news = state.fetching.as_ref().is_some_and(|fetching| fetching.ptr_eq(&fetch));
                if is_news { state.take_in(fetched) } else { fetched }
            }
        };
        answer.map_err(|error| Error::new(ErrorKind::Credential, error))
    }

    async fn clear_cache(&self) -> azure_core::Result<()> {
        self.lock().token = None;
        Ok(())
    }
}

/// Sends requests, and reports refused tokens to the [`KeptToken`], if there is one.
#[derive(Debug)]
pub(super) struct TokenWatch {
    client: reqwest::Client,
    token: Option<Arc<KeptToken>>,
}

impl TokenWatch {
    pub fn new(client: reqwest::Client, token: Option<Arc<KeptToken>>) -> Self {
        Self { client, token }
    }
}

#[async_trait::async_trait]
impl HttpClient for TokenWatch {
    async fn execute_request(&self, request: &Request) -> azure_core::Result<Response> {
        let response = self.client.execute_request(request).await?;
        refuse_foreign(&response)?;
        if response.status() == StatusCode::Unauthorized
            && let Some(kept) = &self.token
            && let Some(shown) = request.headers().get_optional_str(&AUTHORIZATION)
        {
            kept.refused(shown.strip_prefix("Bearer ").unwrap_or(shown));
        }
        if [StatusCode::Unauthorized, StatusCode::Forbidden].contains(&response.status()) {
            return Err(refusal(response).await);
        }
        Ok(response)
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test that cannot go on fails")]

    use std::collections::VecDeque;

    use tokio::sync::oneshot;

    use super::*;

    type Fetched = Result<AccessToken, Error>;

    fn token(name: &str, seconds_left: i64) -> Fetched {
        let expires_on = OffsetDateTime::now_utc() + time::Duration::seconds(seconds_left);
        Ok(AccessToken::new(name.to_owned(), expires_on))
    }

    fn no_token() -> Fetched {
        Err(Error::message(ErrorKind::Credential, "no token"))
    }

    /// Returns a [`KeptToken`] and one sender per fetch. A fetch ends when the test sends its result.
    fn kept(fetches: usize) -> (KeptToken, Vec<oneshot::Sender<Fetched>>) {
        let (senders, answers): (Vec<_>, VecDeque<_>) = (0..fetches).map(|_| oneshot::channel()).unzip();
        let answers = Mutex::new(answers);
        let source = move |_| -> BoxFuture<'static, Fetched> {
            let answer = answers.lock().unwrap().pop_front().expect("a fetch that the test foresees");
            Box::pin(async move { answer.await.unwrap() })
        };
        (KeptToken::from(Box::new(source)), senders)
    }

    fn has_ended(kept: &KeptToken) -> bool {
        kept.lock().task.as_ref().unwrap().is_finished()
    }

    async fn ask(kept: &KeptToken) -> Result<String, Error> {
        kept.get_token(&["scope"]).await.map(|token| token.token.secret().to_owned())
    }

    #[tokio::test]
    async fn next_token_is_fetched_ahead_without_a_wait() {
        let (kept, mut answers) = kept(2);
        let (first, second) = (answers.remove(0), answers.remove(0));
        assert!(first.send(token("first", 300)).is_ok());
        assert_eq!(ask(&kept).await.unwrap(), "first");
        // The first token expires in less than `AHEAD`, so the second fetch has already started.
        for _ in 0..3 {
            assert_eq!(ask(&kept).await.unwrap(), "first");
        }
        assert!(second.send(token("second", 3600)).is_ok());
        while ask(&kept).await.unwrap() != "second" {
            tokio::task::yield_now().await;
        }
        // A third fetch would panic, so this line also checks that there is none.
        assert_eq!(ask(&kept).await.unwrap(), "second");
    }

    #[tokio::test]
    async fn token_stays_in_use_when_next_fetch_fails() {
        let (kept, mut answers) = kept(3);
        let (first, second, third) = (answers.remove(0), answers.remove(0), answers.remove(0));
        assert!(first.send(no_token()).is_ok());
        assert!(ask(&kept).await.is_err());
        assert!(second.send(token("second", 300)).is_ok());
        assert!(third.send(no_token()).is_ok());
        assert_eq!(ask(&kept).await.unwrap(), "second");
        while !has_ended(&kept) {
            tokio::task::yield_now().await;
        }
        assert_eq!(ask(&kept).await.unwrap(), "second");
    }

    #[tokio::test]
    async fn token_stays_in_use_when_next_fetch_panics() {
        let (kept, mut answers) = kept(3);
        let (first, second, _third) = (answers.remove(0), answers.remove(0), answers.remove(0));
        assert!(first.send(token("first", 300)).is_ok());
        assert_eq!(ask(&kept).await.unwrap(), "first");
        assert_eq!(ask(&kept).await.unwrap(), "first");
        // The second fetch panics, because its sender is dropped.
        drop(second);
        while !has_ended(&kept) {
            tokio::task::yield_now().await;
        }
        assert_eq!(ask(&kept).await.unwrap(), "first");
    }

    #[tokio::test]
    async fn token_is_not_used_after_expiry() {
        let (kept, mut answers) = kept(2);
        let (first, second) = (answers.remove(0), answers.remove(0));
        assert!(first.send(token("first", 3600)).is_ok());
        assert_eq!(ask(&kept).await.unwrap(), "first");
        kept.state.lock().unwrap().token = token("first", -1).ok();
        assert!(second.send(no_token()).is_ok());
        assert!(ask(&kept).await.is_err());
    }

    #[tokio::test]
    async fn token_is_replaced_when_store_refuses_it() {
        let (kept, mut answers) = kept(2);
        let (first, second) = (answers.remove(0), answers.remove(0));
        assert!(first.send(token("first", 86_400)).is_ok());
        assert_eq!(ask(&kept).await.unwrap(), "first");
        kept.refused("another");
        assert_eq!(ask(&kept).await.unwrap(), "first", "of a request that was late");
        kept.refused("first");
        assert!(kept.lock().fetching.is_some(), "the next one is fetched before anybody asks for it");
        kept.refused("first");
        assert!(second.send(token("second", 86_400)).is_ok());
        assert_eq!(ask(&kept).await.unwrap(), "second");
        // Another request with the first token is refused. This must not start a third fetch, which would panic.
        kept.refused("first");
        assert_eq!(ask(&kept).await.unwrap(), "second");
    }

    #[test]
    fn debug_output_hides_the_token() {
        let (kept, _) = kept(0);
        kept.state.lock().unwrap().token = token("secret", 60).ok();
        assert_eq!(format!("{kept:?}"), "KeptToken");
    }
}
