//! Offers each partition to the workers until a worker takes it, then saves the worker's acknowledgement. See
//! `../README.md`.

mod settings;

#[cfg(test)]
mod tests;

use std::error::Error;

use baton_sdk::http::{Body, Request};
use baton_sdk::{AsyncTerm, Failure, Stop};
use serde::{Deserialize, Serialize};

use settings::Settings;

baton_sdk::coordinator!(async run);

/// The value saved under `partitions/N`: the worker that took partition N, and the term in which the worker took it.
#[derive(Debug, Serialize, Deserialize)]
struct Acknowledgement {
    worker: String,
    term: u64,
}

async fn run(term: &AsyncTerm) -> baton_sdk::Result {
    // Fatal, because a retry on this node would read the same invalid settings.
    let settings = Settings::read(|name| std::env::var(name).ok()).map_err(Failure::fatal)?;
    schedule(term, &settings).await
}

async fn schedule(term: &AsyncTerm, settings: &Settings) -> baton_sdk::Result {
    let state = term.state();
    let acknowledged = state.keys("partitions/");
    let key = |partition: u64| format!("partitions/{partition}");
    let open: Vec<u64> =
        (0..settings.partitions).filter(|&partition| acknowledged.binary_search(&key(partition)).is_err()).collect();
    let count = settings.partitions - open.len() as u64;
    println!("term {}: {count} of {} partitions are acknowledged", term.number(), settings.partitions);
    for partition in open {
        let acknowledgement = match hand_over(term, settings, partition).await {
            Ok(acknowledgement) => acknowledgement,
            Err(stop) => {
                println!("{stop}");
                return Ok(());
            }
        };
        // Once the acknowledgement is saved, no later instance offers the partition again. If this call fails, the
        // acknowledgement may still have been saved. The next instance finds out when it reads the state.
        state.put(&key(partition), &acknowledgement)?;
        term.progress();
        println!("partition {partition} was taken by {} in term {}", acknowledgement.worker, acknowledgement.term);
    }
    println!("all {} partitions are acknowledged", settings.partitions);
    Ok(())
}

/// Offers a partition to one worker after another until a worker takes it. The partition's number selects the first
/// worker.
async fn hand_over(term: &AsyncTerm, settings: &Settings, partition: u64) -> Result<Acknowledgement, Stop> {
    let mut turn = partition;
    loop {
        let worker = settings.worker(turn);
        match term.until_stop(offer(term, settings, worker, partition)).await? {
            Ok(term) => return Ok(Acknowledgement { worker: worker.to_owned(), term }),
            Err(why) => println!("{worker} did not take partition {partition}: {why}"),
        }
        term.sleep(settings.pause).await?;
        turn += 1;
    }
}

/// Offers a partition to a worker. Returns the term in which the worker took the partition. If the worker took it after
/// an earlier offer, this is the term of that offer.
async fn offer(term: &AsyncTerm, settings: &Settings, worker: &str, partition: u64) -> Result<u64, Box<dyn Error>> {
    let request = Request::post(format!("{worker}/partitions/{partition}")).body(Body::empty())?;
    let timeout = settings.timeout;
    let client = term.http().connect_timeout(timeout).first_byte_timeout(timeout).between_bytes_timeout(timeout);
    let mut response = client.send(request).await?;
    let status = response.status();
    let text = response.body_mut().str_contents().await?;
    match text.parse() {
        Ok(term) if status == 200 => Ok(term),
        _ => Err(format!("it answered {status} {text:.80}").into()),
    }
}
