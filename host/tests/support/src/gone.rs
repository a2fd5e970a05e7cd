//! Waiting for the end of an instance that the test's own process is the host of.

use baton_runtime::{Gone, Instance, InstanceEvent};

use crate::patience::Patience;

/// Waits until it is gone.
pub async fn gone(instance: &mut Instance) -> Gone {
    let gone = async {
        loop {
            if let InstanceEvent::Gone(gone) = instance.next_event().await {
                return gone;
            }
        }
    };
    Patience::of_future(gone).await.unwrap_or_else(|_| {
        // A guest that cannot be ended would keep its runtime, and so this process, for ever.
        eprintln!("the instance is never gone");
        std::process::abort()
    })
}
