//! What the metadata service says.

use serde::Deserialize;

use crate::telemetry::Event;
use baton_store::foreign::Reader;

/// What is read of others' bytes, for [`crate::foreign`].
pub(crate) const READER: Reader = Reader {
    name: "scheduled-events",
    read: |bytes| {
        if let Ok(document) = serde_json::from_slice::<Document>(bytes) {
            assert!(document.of("web-3").iter().all(|event| event.id.len() <= LONGEST_ID));
        }
        drop(serde_json::from_slice::<Machine>(bytes));
    },
};

/// An event's id, in bytes: it is a UUID.
const LONGEST_ID: usize = 128;

/// What a machine of Azure is.
#[derive(Deserialize)]
pub(super) struct Machine {
    /// What events call it.
    pub(super) name: String,
}

/// All that is planned for the machines of a group.
#[derive(Deserialize, Default)]
#[serde(rename_all = "PascalCase", default)]
pub(super) struct Document {
    events: Vec<ScheduledEvent>,
}

/// Something that is planned.
#[derive(Deserialize, Default, Debug)]
#[serde(rename_all = "PascalCase", default)]
pub(super) struct ScheduledEvent {
    #[serde(rename = "EventId")]
    pub(super) id: String,
    #[serde(rename = "EventType")]
    kind: String,
    #[serde(rename = "EventStatus")]
    status: String,
    /// The machines that it is planned for.
    resources: Vec<String>,
    not_before: String,
    description: String,
}

impl Document {
    /// What is planned for this machine, as far as it interrupts what runs there.
    pub(super) fn of(&self, machine: &str) -> Vec<&ScheduledEvent> {
        let concerns = |event: &&ScheduledEvent| {
            event.done().is_some()
                && (1..=LONGEST_ID).contains(&event.id.len())
                && event.resources.iter().any(|name| name.eq_ignore_ascii_case(machine))
        };
        self.events.iter().filter(concerns).collect()
    }
}

impl ScheduledEvent {
    /// What is done to the machine.
    fn done(&self) -> Option<&'static str> {
        match self.kind.as_str() {
            "Freeze" => Some("frozen"),
            "Reboot" => Some("rebooted"),
            "Redeploy" => Some("redeployed"),
            "Preempt" => Some("preempted"),
            "Terminate" => Some("terminated"),
            _ => None,
        }
    }

    /// Why a node there leads nothing, for a person.
    pub(super) fn why(&self) -> String {
        let done = self.done().unwrap_or("changed");
        if self.status == "Started" {
            format!("the machine is being {done}")
        } else {
            format!("the machine is about to be {done}")
        }
    }

    /// Whether it waits for an acknowledgement, and for no other machine's than this one's: who acknowledges does so for
    /// all of them.
    pub(super) fn can_be_acknowledged(&self) -> bool {
        self.status == "Scheduled" && self.resources.len() == 1
    }

    /// When it begins without an acknowledgement, for a person.
    pub(super) fn begins(&self) -> &str {
        if self.not_before.is_empty() { "the announced time" } else { &self.not_before }
    }

    pub(super) fn told(&self) -> Event {
        let some = |text: &String| Some(text.clone()).filter(|text| !text.is_empty());
        Event::Maintenance {
            reason: self.why(),
            id: self.id.clone(),
            status: self.status.clone(),
            not_before: some(&self.not_before),
            description: some(&self.description),
        }
    }
}

/// What is planned for a machine alone, under those ids.
#[cfg(test)]
pub(super) fn freezes(ids: &[&str], machine: &str) -> Document {
    let freeze = |id: &&str| ScheduledEvent {
        id: (*id).to_owned(),
        kind: "Freeze".to_owned(),
        status: "Scheduled".to_owned(),
        resources: vec![machine.to_owned()],
        ..ScheduledEvent::default()
    };
    Document { events: ids.iter().map(freeze).collect() }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test may panic")]
    use super::*;

    fn document(events: serde_json::Value) -> Document {
        serde_json::from_value(serde_json::json!({ "DocumentIncarnation": 3, "Events": events })).unwrap()
    }

    #[test]
    fn what_interrupts_this_machine_is_heeded() {
        let event = |kind: &str, status: &str, resources: &[&str]| {
            serde_json::json!({
                "EventId": "A", "EventType": kind, "ResourceType": "VirtualMachine", "Resources": resources,
                "EventStatus": status, "NotBefore": "", "Description": "", "EventSource": "Platform",
                "DurationInSeconds": 9,
            })
        };
        for kind in ["Freeze", "Reboot", "Redeploy", "Preempt", "Terminate"] {
            let planned = document(serde_json::json!([event(kind, "Scheduled", &["web_3"])]));
            let of = planned.of("WEB_3");
            assert!(of.len() == 1 && of[0].can_be_acknowledged(), "{kind}");
            assert!(of[0].why().starts_with("the machine is about to be "));
            assert!(planned.of("web_4").is_empty());
        }
        let of = |event: serde_json::Value| {
            let planned = document(serde_json::json!([event]));
            planned.of("a").first().map(|event| event.can_be_acknowledged())
        };
        assert_eq!(of(event("Freeze", "Started", &["a"])), Some(false), "it is too late");
        assert_eq!(of(event("Freeze", "Scheduled", &["a", "b"])), Some(false), "b may not have stepped down");
        assert_eq!(of(event("Other", "Scheduled", &["a"])), None);
        assert!(serde_json::from_str::<Document>("{}").unwrap().of("a").is_empty());
    }
}
