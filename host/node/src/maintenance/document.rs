use serde::Deserialize;

use crate::telemetry::Event;
use baton_base::untrusted::Reader;

/// Parses responses of the metadata service, for the fuzz tests.
pub const READER: Reader = Reader {
    name: "scheduled-events",
    read: |bytes| {
        if let Ok(document) = serde_json::from_slice::<Document>(bytes) {
            assert!(document.of("web-3").iter().all(|event| event.id.len() <= LONGEST_ID));
        }
        drop(serde_json::from_slice::<Machine>(bytes));
    },
};

/// Maximum length of an event id, in bytes. Azure's ids are UUIDs.
const LONGEST_ID: usize = 128;

#[derive(Deserialize)]
pub(super) struct Machine {
    /// The machine's name, as it appears in events.
    pub(super) name: String,
}

/// The planned events for a group of machines.
#[derive(Deserialize, Default)]
#[serde(rename_all = "PascalCase", default)]
pub(super) struct Document {
    events: Vec<ScheduledEvent>,
}

#[derive(Deserialize, Default, Debug)]
#[serde(rename_all = "PascalCase", default)]
pub(super) struct ScheduledEvent {
    #[serde(rename = "EventId")]
    pub(super) id: String,
    #[serde(rename = "EventType")]
    kind: String,
    #[serde(rename = "EventStatus")]
    status: String,
    resources: Vec<String>,
    not_before: String,
    description: String,
}

impl Document {
    /// Returns the events that will interrupt processes on this machine.
    pub(super) fn of(&self, machine: &str) -> Vec<&ScheduledEvent> {
        let concerns = |event: &&ScheduledEvent| {
            event.action().is_some()
                && (1..=LONGEST_ID).contains(&event.id.len())
                && event.resources.iter().any(|name| name.eq_ignore_ascii_case(machine))
        };
        self.events.iter().filter(concerns).collect()
    }
}

impl ScheduledEvent {
    /// Returns `None` for kinds of events that do not interrupt the machine.
    fn action(&self) -> Option<&'static str> {
        match self.kind.as_str() {
            "Freeze" => Some("frozen"),
            "Reboot" => Some("rebooted"),
            "Redeploy" => Some("redeployed"),
            "Preempt" => Some("preempted"),
            "Terminate" => Some("terminated"),
            _ => None,
        }
    }

    pub(super) fn why(&self) -> String {
        let action = self.action().unwrap_or("changed");
        if self.status == "Started" {
            format!("the machine is being {action}")
        } else {
            format!("the machine is about to be {action}")
        }
    }

    /// Returns true if Azure waits for an acknowledgement of this event, and no other machine is affected. An
    /// acknowledgement applies to all machines that the event affects.
    pub(super) fn can_be_acknowledged(&self) -> bool {
        self.status == "Scheduled" && self.resources.len() == 1
    }

    /// Describes when Azure starts the event if this host does not acknowledge the event earlier.
    pub(super) fn begins(&self) -> &str {
        if self.not_before.is_empty() { "the announced time" } else { &self.not_before }
    }

    pub(super) fn to_event(&self) -> Event {
        self.to_event_in(if self.status == "Started" { "Started" } else { "Scheduled" })
    }

    pub(super) fn to_event_in(&self, status: &'static str) -> Event {
        let some = |text: &String| Some(text.clone()).filter(|text| !text.is_empty());
        Event::Maintenance {
            reason: self.why(),
            id: Some(self.id.clone()),
            status,
            not_before: some(&self.not_before),
            description: some(&self.description),
        }
    }
}

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
    fn only_events_that_interrupt_this_machine_are_selected() {
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
            assert!(matches!(of[0].to_event(), Event::Maintenance { status: "Scheduled", .. }));
            assert!(planned.of("web_4").is_empty());
        }
        let of = |event: serde_json::Value| {
            let planned = document(serde_json::json!([event]));
            planned.of("a").first().map(|event| event.can_be_acknowledged())
        };
        assert_eq!(of(event("Freeze", "Started", &["a"])), Some(false), "the event has begun");
        for (status, shown) in [("Started", "Started"), ("Over", "Scheduled"), ("Acknowledged", "Scheduled")] {
            let planned = document(serde_json::json!([event("Freeze", status, &["a"])]));
            // The document may contain other statuses, such as `Acknowledged`. The node logs these as `Scheduled`,
            // because other code logs acknowledgements and the end of an event.
            assert!(matches!(planned.of("a")[0].to_event(), Event::Maintenance { status, .. } if status == shown));
        }
        assert_eq!(of(event("Freeze", "Scheduled", &["a", "b"])), Some(false), "b may not have stepped down");
        assert_eq!(of(event("Other", "Scheduled", &["a"])), None);
        assert!(serde_json::from_str::<Document>("{}").unwrap().of("a").is_empty());
    }
}
