//! Waits for the end of an instance whose host is the test's own process.

use baton_runtime::{Gone, Instance, InstanceEvent, InstanceHandle as _};

use crate::patience::Patience;

/// Waits until the host reports that the instance is gone.
pub async fn gone(instance: &mut Instance) -> Gone {
    let gone = async {
        loop {
            if let InstanceEvent::Gone(gone) = instance.next_event().await {
                return gone;
            }
        }
    };
    Patience::of_future(gone).await.unwrap_or_else(|_| {
        // Abort instead of panicking. A panic would drop the runtime, and the drop would wait forever for the guest,
        // which has not ended.
        eprintln!("the instance is never gone");
        std::process::abort()
    })
}
