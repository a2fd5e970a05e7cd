//! Allocates as many objects of one kind as it can. Each object uses some of the host's memory. The variable `HOARD`
//! names the kind.

use std::hint::black_box;

use baton_sdk::Failure;
use wasip2::filesystem::preopens::get_directories;
use wasip2::filesystem::types::{Descriptor, DescriptorFlags, OpenFlags, PathFlags};
use wasip2::http::types::{Fields, Method, OutgoingBody, OutgoingRequest, Scheme};

use crate::client;

/// A number that exceeds every limit on the number of handles.
const ENDLESS: usize = 60_000;

/// Allocates objects until the host refuses one, and keeps all of them. Returns the number of objects and the host's
/// error.
pub fn hoard(what: &str, url: &str) -> Result<String, Failure> {
    Ok(match what {
        "nothing" => "0".to_owned(),
        "methods" => keep(|_| request().set_method(&Method::Other("M".repeat(1_000_000))).map(|()| request())),
        "schemes" => keep(|_| {
            let request = request();
            request.set_scheme(Some(&Scheme::Other("s".repeat(64)))).map(|()| request)
        }),
        "authorities" => keep(|_| {
            let request = request();
            request.set_authority(Some(&"a".repeat(1_000))).map(|()| request)
        }),
        "paths" => keep(|_| {
            let request = request();
            request.set_path_with_query(Some(&"/".repeat(32_000))).map(|()| request)
        }),
        "fields" => keep(fields),
        "copies" => {
            let original = fields(0)?;
            keep(|n| {
                let copy = original.clone();
                copy.append("one-more", n.to_string().as_bytes()).map(|()| copy)
            })
        }
        "emptied" => keep(|n| {
            // Stop early, because each object takes a long time to create. If the host did not limit these objects,
            // even this many would noticeably increase the host's memory use.
            if n == 1_000 {
                return Err(Failure::fatal("enough"));
            }
            let emptied = fields(n)?;
            let values: Vec<Vec<u8>> = (0..50).map(|_| Vec::new()).collect();
            emptied.set("n0", &values).map_err(|error| Failure::fatal(format!("{error:?}")))?;
            (0..400).try_for_each(|n| emptied.delete(&format!("n{n}"))).map_err(|error| format!("{error:?}"))?;
            Ok::<_, Failure>(emptied)
        }),
        "trailers" => keep(|n| {
            let request = request();
            let body = request.body().map_err(|()| "no body")?;
            OutgoingBody::finish(body, Some(fields(n)?)).map_err(|code| code.to_string())?;
            Ok::<_, Failure>(request)
        }),
        "heads" => keep(|n| {
            // Stop early, because each object requires a request. If the host did not limit these objects, even this
            // many would noticeably increase the host's memory use.
            if n == 10_000 {
                return Err("enough".to_owned());
            }
            let begun = client::begin(&format!("{url}/some"), Fields::new(), None)?;
            let response = client::head(&begun).map_err(|code| code.to_string())?;
            let headers = response.headers();
            client::read(&response.consume().map_err(|()| "no body")?)?;
            Ok::<_, String>(headers)
        }),
        "stdouts" => {
            let kept = keep(|n| if n < 4_000 { Ok(wasip2::cli::stdout::get_stdout()) } else { Err("enough") });
            // These handles do not count against the limit on handles, so the guest must still be able to create
            // another object.
            format!("{kept}, {:?}", fields(0).is_ok())
        }
        "bodies" => keep(|_| {
            let request = request();
            let body = request.body()?;
            let stream = body.write()?;
            stream.write(&[b'x'; 16 << 10]).map_err(|_| ())?;
            drop(stream);
            OutgoingBody::finish(body, None).map_err(|_| ())?;
            Ok::<_, ()>(request)
        }),
        "answers" => keep(|_| {
            let begun = client::begin(&format!("{url}/no-body"), Fields::new(), None)?;
            client::head(&begun).map_err(|code| code.to_string())
        }),
        "unread" => keep(|_| {
            let begun = client::begin(url, Fields::new(), None)?;
            begun.subscribe().block();
            Ok::<_, String>(begun)
        }),
        "listings" => keep(|_| folder().read_directory()),
        "read-listings" => keep(|_| {
            let listing = folder().read_directory()?;
            listing.read_directory_entry().map(|_| listing)
        }),
        "files" => keep(|n| create(&n.to_string())),
        "readers" => {
            let file = open("large")?;
            keep(|_| {
                let stream = file.read_via_stream(0)?;
                stream.subscribe().block();
                let _ = stream.read(1 << 20);
                Ok::<_, wasip2::filesystem::types::ErrorCode>(stream)
            })
        }
        "writers" => {
            let file = create("written")?;
            keep(|_| {
                let stream = file.write_via_stream(0)?;
                let _ = stream.write(&[b'x'; 64 << 10]);
                Ok::<_, wasip2::filesystem::types::ErrorCode>(stream)
            })
        }
        unknown => return Err(Failure::fatal(format!("nothing is called `{unknown}`"))),
    })
}

fn keep<T, E: std::fmt::Debug>(mut get: impl FnMut(usize) -> Result<T, E>) -> String {
    let mut kept = Vec::new();
    while kept.len() < ENDLESS {
        match get(kept.len()) {
            Ok(one) => kept.push(one),
            Err(error) => {
                let result = format!("{}: {error:?}", kept.len());
                // Keeps the objects until the end of the term.
                std::mem::forget(black_box(kept));
                return result;
            }
        }
    }
    format!("{} and no end", kept.len())
}

fn request() -> OutgoingRequest {
    OutgoingRequest::new(Fields::new())
}

fn fields(_: usize) -> Result<Fields, Failure> {
    let entries: Vec<_> = (0..400).map(|n| (format!("n{n}"), Vec::new())).collect();
    Fields::from_list(&entries).map_err(|error| Failure::fatal(format!("{error:?}")))
}

fn folder() -> Descriptor {
    get_directories().swap_remove(0).0
}

fn open(name: &str) -> Result<Descriptor, Failure> {
    let opened = folder().open_at(PathFlags::empty(), name, OpenFlags::empty(), DescriptorFlags::READ);
    opened.map_err(|error| Failure::fatal(format!("{name}: {error:?}")))
}

fn create(name: &str) -> Result<Descriptor, wasip2::filesystem::types::ErrorCode> {
    folder().open_at(PathFlags::empty(), name, OpenFlags::CREATE, DescriptorFlags::WRITE)
}
