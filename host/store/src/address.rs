//! Where an address or a host's name leads: the one place that judges it, for all of the host's packages.
//!
//! There are two questions, which differ in what doubt is worth. A name that somebody else controls, as a coordinator's
//! granted name or a registry's redirect, must not lead into this machine, its network, or to the place where a cloud
//! gives out its machines' credentials: for [`kind`] and [`kind_of_host`] something is of this machine if it may be. What is
//! sent in the clear must not leave this machine: for [`is_certainly_loopback`] it is of this machine only if it says so
//! plainly.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use url::Host;

/// Where clouds answer their machines, outside the ranges that are known as link-local. What is inside fc00::/7 would
/// pass for a private network otherwise.
const PLATFORMS: [IpAddr; 7] = [
    // Azure's platform.
    IpAddr::V4(Ipv4Addr::new(168, 63, 129, 16)),
    // Metadata of Alibaba, Google, Oracle, Scaleway and Akamai.
    IpAddr::V4(Ipv4Addr::new(100, 100, 100, 200)),
    IpAddr::V6(Ipv6Addr::new(0xfd00, 0x100, 0, 0, 0, 0, 0x100, 0x200)),
    IpAddr::V6(Ipv6Addr::new(0xfd20, 0xce, 0, 0, 0, 0, 0, 0x254)),
    IpAddr::V6(Ipv6Addr::new(0xfd00, 0xc1, 0, 0, 0, 0, 0xa9fe, 0xa9fe)),
    IpAddr::V6(Ipv6Addr::new(0xfd00, 0x42, 0, 0, 0, 0, 0, 0x42)),
    IpAddr::V6(Ipv6Addr::new(0xfd00, 0xa9fe, 0xa9fe, 0, 0, 0, 0, 1)),
];

/// The text without the user and the password that may stand before its host, for people: `https://***@host/path`, and
/// `***@host:1` where there is no scheme.
#[must_use]
pub fn without_user(text: &str) -> String {
    let (scheme, rest) = text.split_once("://").map_or(("", text), |(scheme, rest)| (&text[..scheme.len() + 3], rest));
    let (authority, path) = rest.split_at(rest.find('/').unwrap_or(rest.len()));
    match authority.rsplit_once('@') {
        Some((_, host)) => format!("{scheme}***@{host}{path}"),
        None => text.to_owned(),
    }
}

/// What an address is to a client that asks for it by a name.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum AddressKind {
    /// On the internet.
    Public,
    /// This machine.
    Loopback,
    /// In a private network.
    Private,
    /// Nothing that a name should stand for: link-local (where metadata is), multicast, reserved.
    Special,
}

/// What an address is. One that carries another inside it is what that is.
#[must_use]
pub fn kind(address: IpAddr) -> AddressKind {
    let address = address.to_canonical();
    match address {
        _ if PLATFORMS.contains(&address) => AddressKind::Special,
        IpAddr::V4(v4) => kind_v4(v4),
        IpAddr::V6(v6) => kind_v6(v6),
    }
}

/// What a URL's host leads to, as far as its own text says. The parser of URLs writes names in lower case, and every
/// spelling of an IPv4 address as that address.
#[must_use]
pub fn kind_of_host<Name: AsRef<str>>(host: &Host<Name>) -> AddressKind {
    match host {
        Host::Domain(name) => {
            let name = name.as_ref().trim_end_matches('.');
            let is_here = name == "localhost" || name.ends_with(".localhost");
            if is_here { AddressKind::Loopback } else { AddressKind::Public }
        }
        Host::Ipv4(address) => kind((*address).into()),
        Host::Ipv6(address) => kind((*address).into()),
    }
}

/// Whether a URL's host is this machine and says so plainly. `localhost.` and names below `localhost` are not in the file of
/// hosts, so that a server of names is asked for them; an address that carries a loopback one inside it is translated by
/// this machine's kernel or by somebody else's.
#[must_use]
pub fn is_certainly_loopback<Name: AsRef<str>>(host: &Host<Name>) -> bool {
    match host {
        Host::Domain(name) => name.as_ref() == "localhost",
        Host::Ipv4(address) => address.is_loopback(),
        Host::Ipv6(address) => address.is_loopback(),
    }
}

fn kind_v4(address: Ipv4Addr) -> AddressKind {
    match address.octets() {
        [127, ..] => AddressKind::Loopback,
        // The last is for carriers, and for the inside of some clouds.
        [10, ..] | [172, 16..=31, ..] | [192, 168, ..] | [100, 64..=127, ..] => AddressKind::Private,
        // "This network", link-local, protocols (Oracle's old metadata among them), examples, relays, benchmarks;
        // multicast, reserved, broadcast.
        [0, ..] | [169, 254, ..] | [192, 0, 0 | 2, _] | [192, 88, 99, _] => AddressKind::Special,
        [198, 18 | 19, ..] | [198, 51, 100, _] | [203, 0, 113, _] => AddressKind::Special,
        [224..=255, ..] => AddressKind::Special,
        _ => AddressKind::Public,
    }
}

fn kind_v6(address: Ipv6Addr) -> AddressKind {
    let inner = |high: u16, low: u16| {
        let [[a, b], [c, d]] = [high.to_be_bytes(), low.to_be_bytes()];
        kind(IpAddr::V4(Ipv4Addr::new(a, b, c, d)))
    };
    match address.segments() {
        [0, 0, 0, 0, 0, 0, 0, 1] => AddressKind::Loopback,
        // Translated to IPv4 on the way, and tunnelled over it.
        [0x64, 0xff9b, 0, 0, 0, 0, high, low] | [0x2002, high, low, ..] => inner(high, low),
        // Teredo, and the other special ones of that block; examples.
        [0x2001, 0..=0x1ff, ..] | [0x2001, 0xdb8, ..] | [0x3fff, 0..=0xfff, ..] => AddressKind::Special,
        // Amazon's own: metadata, the identities of pods, names and time.
        [0xfd00, 0xec2, ..] => AddressKind::Special,
        // Link-local addresses as a network's own translator writes them.
        [0xfc00..=0xfdff, .., 0xa9fe, _] => AddressKind::Special,
        [0xfc00..=0xfdff, ..] => AddressKind::Private,
        // All that is given out for the internet so far.
        [0x2000..=0x3fff, ..] => AddressKind::Public,
        _ => AddressKind::Special,
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test may panic")]
    use super::*;

    #[test]
    fn an_address_is_what_it_leads_to() {
        for (kind_wanted, addresses) in [
            (AddressKind::Public, &["1.1.1.1", "172.32.0.1", "100.128.0.1", "2606:4700::1111", "64:ff9b::101:101"][..]),
            (
                AddressKind::Loopback,
                &["127.0.0.1", "127.9.9.9", "::1", "::ffff:127.0.0.1", "64:ff9b::7f00:1", "2002:7f00:1::"],
            ),
            (
                AddressKind::Private,
                &["10.0.0.1", "172.16.0.1", "172.31.255.255", "192.168.1.1", "100.64.0.1", "fd12::1"],
            ),
            (AddressKind::Private, &["::ffff:10.0.0.1", "::ffff:c0a8:101", "2002:a00:1::1"]),
            (
                AddressKind::Special,
                &["0.0.0.0", "169.254.169.254", "224.0.0.1", "255.255.255.255", "::", "fe80::1", "ff02::1"],
            ),
            (AddressKind::Special, &["::ffff:169.254.169.254", "64:ff9b::a9fe:a9fe", "2002:a9fe:a9fe::1", "::7f00:1"]),
            (
                AddressKind::Special,
                &["168.63.129.16", "100.100.100.200", "fd00:ec2::254", "2001::1", "64:ff9b:1::1", "fec0::1"],
            ),
            // Credentials of a pod on EKS, metadata of Google, Scaleway, Oracle, Akamai and Alibaba.
            (AddressKind::Special, &["169.254.170.2", "169.254.170.23", "fd00:ec2::23", "fd20:ce::254", "fd00:42::42"]),
            (AddressKind::Special, &["192.0.0.192", "fd00:c1::a9fe:a9fe", "fd00:a9fe:a9fe::1", "fd00:100::100:200"]),
            (AddressKind::Special, &["169.254.42.42", "169.254.0.23", "fe80::a9fe:a9fe", "fd12:64::a9fe:a9fe"]),
            (AddressKind::Special, &["::ffff:168.63.129.16", "64:ff9b::6464:64c8", "2002:a83f:8110::1", "::a9fe:a9fe"]),
            (AddressKind::Special, &["::ffff:0:a9fe:a9fe", "192.88.99.1", "3fff::1", "100::1", "5f00::1"]),
            (AddressKind::Private, &["fd00:42::43", "fd20:ce::1", "fd00:c1::1", "fd00::1", "fdff:ffff::1"]),
        ] {
            for address in addresses {
                assert_eq!(kind(address.parse().unwrap()), kind_wanted, "{address}");
            }
        }
    }

    #[test]
    fn a_host_is_this_machine_for_certain_or_only_leads_to_it() {
        for (host, leads_to, is_certain) in [
            ("localhost", AddressKind::Loopback, true),
            ("LOCALHOST", AddressKind::Loopback, true),
            ("127.0.0.1", AddressKind::Loopback, true),
            ("127.255.255.254", AddressKind::Loopback, true),
            ("127.1", AddressKind::Loopback, true),
            ("0x7f.1", AddressKind::Loopback, true),
            ("2130706433", AddressKind::Loopback, true),
            ("127.0.0.1.", AddressKind::Loopback, true),
            ("[::1]", AddressKind::Loopback, true),
            ("[0:0:0:0:0:0:0:1]", AddressKind::Loopback, true),
            ("localhost.", AddressKind::Loopback, false),
            ("LOCALHOST.", AddressKind::Loopback, false),
            ("a.localhost", AddressKind::Loopback, false),
            ("a.LocalHost.", AddressKind::Loopback, false),
            ("[::ffff:127.0.0.1]", AddressKind::Loopback, false),
            ("[::ffff:7f09:909]", AddressKind::Loopback, false),
            ("[64:ff9b::7f00:1]", AddressKind::Loopback, false),
            ("[2002:7f00:1::]", AddressKind::Loopback, false),
            ("0.0.0.0", AddressKind::Special, false),
            ("[::]", AddressKind::Special, false),
            ("[::127.0.0.1]", AddressKind::Special, false),
            ("10.0.0.1", AddressKind::Private, false),
            ("localhost.example", AddressKind::Public, false),
            ("notlocalhost", AddressKind::Public, false),
            ("128.0.0.1", AddressKind::Public, false),
        ] {
            // As a setting, a grant, a reference or a redirect has it.
            let url: url::Url = format!("http://{host}:10000/").parse().unwrap();
            let host = url.host().unwrap();
            assert_eq!((kind_of_host(&host), is_certainly_loopback(&host)), (leads_to, is_certain), "{url}");
            let owned = host.to_owned();
            assert_eq!((kind_of_host(&owned), is_certainly_loopback(&owned)), (leads_to, is_certain), "{url}");
        }
    }
}
