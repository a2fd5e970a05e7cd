//! Classification of addresses and host names, for all packages of the host.
//!
//! Callers ask two different questions, and doubtful cases get opposite answers:
//!
//! - Is an address or a host public? An outsider may control a name, for example the target of a registry's redirect.
//!   The name must not lead to this machine, its network, or a cloud's metadata service. So in case of doubt, [`kind`],
//!   [`kind_from_here`] and [`kind_of_host`] do not return [`Public`](AddressKind::Public).
//! - Is a host certainly this machine? Unencrypted traffic must not leave this machine. So in case of doubt,
//!   [`is_certainly_loopback`] returns false.

use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, UdpSocket};
use std::ops::RangeInclusive;
use std::ptr;

use rustix::io::Errno;
use serde::{Deserialize, Serialize};
use url::Host;

/// Addresses of clouds' platform services, outside the link-local ranges. Without this list, these addresses would
/// count as private, or even as public.
const PLATFORMS: [IpAddr; 7] = [
    IpAddr::V4(Ipv4Addr::new(168, 63, 129, 16)),
    // Metadata services of Alibaba, Google, Oracle, Scaleway and Akamai.
    IpAddr::V4(Ipv4Addr::new(100, 100, 100, 200)),
    IpAddr::V6(Ipv6Addr::new(0xfd00, 0x100, 0, 0, 0, 0, 0x100, 0x200)),
    IpAddr::V6(Ipv6Addr::new(0xfd20, 0xce, 0, 0, 0, 0, 0, 0x254)),
    IpAddr::V6(Ipv6Addr::new(0xfd00, 0xc1, 0, 0, 0, 0, 0xa9fe, 0xa9fe)),
    IpAddr::V6(Ipv6Addr::new(0xfd00, 0x42, 0, 0, 0, 0, 0, 0x42)),
    IpAddr::V6(Ipv6Addr::new(0xfd00, 0xa9fe, 0xa9fe, 0, 0, 0, 0, 1)),
];

/// Hides the user and the password in a URL or address, for display: `https://***@host/path`, or `***@host:1` without a
/// scheme.
#[must_use]
pub fn without_user(text: &str) -> String {
    let (scheme, rest) = text.split_once("://").map_or(("", text), |(scheme, rest)| (&text[..scheme.len() + 3], rest));
    let (authority, path) = rest.split_at(rest.find('/').unwrap_or(rest.len()));
    match authority.rsplit_once('@') {
        Some((_, host)) => format!("{scheme}***@{host}{path}"),
        None => text.to_owned(),
    }
}

/// The kind of an address or a host.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum AddressKind {
    /// An address on the internet.
    Public,
    /// This machine.
    Loopback,
    /// An address in a private network.
    Private,
    /// An address to which no name should resolve: link-local (where metadata services are), multicast or reserved.
    Special,
}

/// The kind of an address, determined from its range. If the address embeds an IPv4 address, the range of the embedded
/// address decides.
#[must_use]
pub fn kind(address: IpAddr) -> AddressKind {
    let address = innermost(address);
    match address {
        _ if PLATFORMS.contains(&address) => AddressKind::Special,
        IpAddr::V4(v4) => kind_v4(v4),
        IpAddr::V6(v6) => kind_v6(v6),
    }
}

/// The kind of an address as seen from this machine. A public address of this machine counts as
/// [`Loopback`](AddressKind::Loopback). A public IPv6 address in a network to which this machine is directly connected
/// counts as [`Private`](AddressKind::Private). Reads the interfaces and routes on each call. Does not detect an
/// address that the network translates to one of this machine's addresses.
#[must_use]
pub fn kind_from_here(address: IpAddr) -> AddressKind {
    match (kind(address), innermost(address)) {
        (AddressKind::Public, address) if is_own(address) => AddressKind::Loopback,
        (AddressKind::Public, IpAddr::V6(address)) if is_on_link(address) => AddressKind::Private,
        (kind, _) => kind,
    }
}

/// True if this machine has the address. Also true if the machine's addresses cannot be read from the kernel, because
/// the address could then be one of them.
fn is_own(address: IpAddr) -> bool {
    interface_addresses().map_or(true, |own| own.contains(&address)) || is_own_source(address)
}

fn interface_addresses() -> io::Result<Vec<IpAddr>> {
    let mut first = ptr::null_mut();
    // SAFETY: `first` is valid for the write of one pointer.
    if unsafe { libc::getifaddrs(&raw mut first) } != 0 {
        return Err(io::Error::last_os_error());
    }
    let mut found = Vec::new();
    let mut next = first;
    // SAFETY: `getifaddrs` succeeded, so `next` is null or an entry of its list, which lives until `freeifaddrs`.
    while let Some(entry) = unsafe { next.as_ref() } {
        // SAFETY: until `freeifaddrs`, an entry's address is null, or points to a valid socket address that is as long
        // as its family says.
        found.extend(unsafe { ip_address(entry.ifa_addr) });
        next = entry.ifa_next;
    }
    // SAFETY: `first` comes from `getifaddrs` and is freed once. `found` holds only copies.
    unsafe { libc::freeifaddrs(first) };
    Ok(found)
}

/// Returns the IP address in a socket address. Returns `None` for families other than IPv4 and IPv6.
///
/// # Safety
/// `address` must be null, or point to a valid socket address that is as long as its family says.
unsafe fn ip_address(address: *const libc::sockaddr) -> Option<IpAddr> {
    // SAFETY: the caller promises that `address` is null or points to a socket address, which begins with its family.
    let family = unsafe { address.as_ref() }?.sa_family;
    match libc::c_int::from(family) {
        libc::AF_INET => {
            // SAFETY: the family shows that the caller's address is a `sockaddr_in`, and `read_unaligned` requires no
            // alignment.
            let address = unsafe { address.cast::<libc::sockaddr_in>().read_unaligned() };
            Some(Ipv4Addr::from_bits(u32::from_be(address.sin_addr.s_addr)).into())
        }
        libc::AF_INET6 => {
            // SAFETY: the family shows that the caller's address is a `sockaddr_in6`, and `read_unaligned` requires no
            // alignment.
            let address = unsafe { address.cast::<libc::sockaddr_in6>().read_unaligned() };
            Some(Ipv6Addr::from(address.sin6_addr.s6_addr).into())
        }
        _ => None,
    }
}

/// True if the kernel would use the address itself as the source of packets to it. The kernel does so for the machine's
/// own addresses, even for an address that no interface has, but that has a local route. The load balancers of some
/// clouds set up such routes. Sends nothing, because connecting a UDP socket only selects the source.
fn is_own_source(address: IpAddr) -> bool {
    /// An arbitrary port: `connect` needs one, but nothing is sent.
    const PORT: u16 = 9;
    let unspecified: SocketAddr = match address {
        IpAddr::V4(_) => (Ipv4Addr::UNSPECIFIED, 0).into(),
        IpAddr::V6(_) => (Ipv6Addr::UNSPECIFIED, 0).into(),
    };
    let source = || -> io::Result<SocketAddr> {
        let socket = UdpSocket::bind(unspecified)?;
        socket.connect((address, PORT))?;
        socket.local_addr()
    };
    match source() {
        Ok(source) => source.ip() == address,
        // If there are no descriptors or memory left, the answer is unknown, so treat the address as this machine's.
        // Any other error means that this machine cannot send anything to the address.
        Err(error) => Errno::from_io_error(&error)
            .is_some_and(|errno| [Errno::MFILE, Errno::NFILE, Errno::NOBUFS, Errno::NOMEM].contains(&errno)),
    }
}

/// True if the address has the prefix of an interface or of an on-link route, or if the kernel's tables cannot be read.
fn is_on_link(address: Ipv6Addr) -> bool {
    let is_within = |(prefix, length): (u128, u32)| (prefix ^ address.to_bits()).leading_zeros() >= length;
    let table = |path: &str| match std::fs::read_to_string(path) {
        // These files do not exist without IPv6.
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(String::new()),
        read => read,
    };
    match (table("/proc/net/if_inet6"), table("/proc/net/ipv6_route")) {
        (Ok(interfaces), Ok(routes)) => interface_prefixes(&interfaces).chain(route_prefixes(&routes)).any(is_within),
        _ => true,
    }
}

/// Prefix lengths that a link with neighbors can have. A shorter prefix belongs to a tunnel to the internet, and a
/// longer prefix is a single address.
const LINK_PREFIXES: RangeInclusive<u32> = 32..=127;

/// The addresses and prefix lengths in `/proc/net/if_inet6`. Each line contains, in hexadecimal, the address, the
/// interface's number, the prefix length, the scope and the flags, followed by the interface's name.
fn interface_prefixes(interfaces: &str) -> impl Iterator<Item = (u128, u32)> {
    interfaces.lines().filter_map(|line| {
        let mut fields = line.split_whitespace();
        let address = u128::from_str_radix(fields.next()?, 16).ok()?;
        let length = u32::from_str_radix(fields.nth(1)?, 16).ok()?;
        LINK_PREFIXES.contains(&length).then_some((address, length))
    })
}

/// The prefixes in `/proc/net/ipv6_route` that have no gateway, and their lengths. Each line contains, in hexadecimal,
/// the destination and its prefix length, the source and its prefix length, the gateway, the metric, two counters and
/// the flags, followed by the interface's name. Routes that reject packets have the interface `lo`.
fn route_prefixes(routes: &str) -> impl Iterator<Item = (u128, u32)> {
    routes.lines().filter_map(|line| {
        let fields: Vec<&str> = line.split_whitespace().collect();
        let [destination, length, _, _, gateway, _, _, _, _, interface] = fields[..] else { return None };
        let destination = u128::from_str_radix(destination, 16).ok()?;
        let length = u32::from_str_radix(length, 16).ok()?;
        let has_gateway = gateway.bytes().any(|digit| digit != b'0');
        let is_on_link = !has_gateway && interface != "lo" && LINK_PREFIXES.contains(&length);
        is_on_link.then_some((destination, length))
    })
}

/// Returns the IPv4 address that an IPv6 address embeds, or else the address itself.
fn innermost(address: IpAddr) -> IpAddr {
    let address = address.to_canonical();
    let IpAddr::V6(v6) = address else { return address };
    match v6.segments() {
        // NAT64 (RFC 6052) and 6to4 (RFC 3056).
        [0x64, 0xff9b, 0, 0, 0, 0, high, low] | [0x2002, high, low, ..] => {
            IpAddr::V4(Ipv4Addr::from_bits(u32::from(high) << 16 | u32::from(low)))
        }
        _ => address,
    }
}

/// The kind of a URL's host. Expects a parsed URL: the parser converts names to lower case, and all spellings of an
/// IPv4 address to one.
#[must_use]
pub fn kind_of_host<Name: AsRef<str>>(host: &Host<Name>) -> AddressKind {
    match host {
        Host::Domain(name) => {
            let name = name.as_ref().trim_end_matches('.');
            let is_here = name == "localhost" || name.ends_with(".localhost");
            if is_here { AddressKind::Loopback } else { AddressKind::Public }
        }
        Host::Ipv4(address) => kind_from_here((*address).into()),
        Host::Ipv6(address) => kind_from_here((*address).into()),
    }
}

/// True only if a URL's host is certainly this machine. False for `localhost.` and names that end in `.localhost`:
/// these names are not in `/etc/hosts`, so a DNS server may resolve them. Also false for an address that embeds a
/// loopback address: another machine may translate the address.
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
        // The last range is reserved for carrier-grade NAT, and is also used inside some clouds.
        [10, ..] | [172, 16..=31, ..] | [192, 168, ..] | [100, 64..=127, ..] => AddressKind::Private,
        // In order: "this network", link-local, protocol assignments (including Oracle's old metadata service),
        // documentation, relays, benchmarks, documentation, multicast, reserved and broadcast.
        [0, ..] | [169, 254, ..] | [192, 0, 0 | 2, _] | [192, 88, 99, _] => AddressKind::Special,
        [198, 18 | 19, ..] | [198, 51, 100, _] | [203, 0, 113, _] => AddressKind::Special,
        [224..=255, ..] => AddressKind::Special,
        _ => AddressKind::Public,
    }
}

fn kind_v6(address: Ipv6Addr) -> AddressKind {
    match address.segments() {
        [0, 0, 0, 0, 0, 0, 0, 1] => AddressKind::Loopback,
        // Teredo and other special ranges in the same block, then two documentation ranges.
        [0x2001, 0..=0x1ff, ..] | [0x2001, 0xdb8, ..] | [0x3fff, 0..=0xfff, ..] => AddressKind::Special,
        // Amazon's services: metadata, pod identities, DNS and time.
        [0xfd00, 0xec2, ..] => AddressKind::Special,
        // Link-local IPv4 addresses behind a private NAT64 prefix.
        [0xfc00..=0xfdff, .., 0xa9fe, _] => AddressKind::Special,
        [0xfc00..=0xfdff, ..] => AddressKind::Private,
        // The only range from which internet addresses have been allocated so far.
        [0x2000..=0x3fff, ..] => AddressKind::Public,
        _ => AddressKind::Special,
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test may panic")]
    use super::*;

    #[test]
    fn kind_follows_range_and_embedded_address() {
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
            // The services that give credentials to pods on EKS, and the metadata services of Google, Scaleway, Oracle,
            // Akamai and Alibaba.
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
    fn own_addresses_are_loopback_unless_their_range_is_private() {
        let own = |address: &str| is_own(address.parse().unwrap());
        assert!(own("127.0.0.1"));
        // No machine has these addresses: they are reserved for documentation (RFC 5737, RFC 3849).
        assert!(!own("192.0.2.1") && !own("2001:db8::1"));
        assert_eq!(kind_from_here([127, 0, 0, 1].into()), AddressKind::Loopback);
        assert_eq!(kind_from_here([169, 254, 169, 254].into()), AddressKind::Special);
        let found = interface_addresses().unwrap();
        assert!(found.contains(&Ipv4Addr::LOCALHOST.into()), "{found:?}");
        for address in found {
            let kind_wanted = match kind(address) {
                AddressKind::Public => AddressKind::Loopback,
                other => other,
            };
            assert_eq!(kind_from_here(address), kind_wanted, "{address}");
        }
    }

    #[test]
    fn neighbors_share_the_prefix_of_an_interface() {
        let interfaces = "26062800022000010000000000000001 02 40 00 80     eth0\n\
                          00000000000000000000000000000001 01 80 10 80       lo\n\
                          20010000000000000000000000000001 03 03 00 80      tun\n\
                          what is no line\n";
        let found: Vec<_> = interface_prefixes(interfaces).collect();
        assert_eq!(found, [(0x2606_2800_0220_0001_0000_0000_0000_0001, 64)]);
    }

    #[test]
    fn neighbors_share_the_prefix_of_a_route_without_gateway() {
        const NONE: &str = "00000000000000000000000000000000";
        const GATEWAY: &str = "fe800000000000000000000000000001";
        let route = |destination: &str, length: &str, gateway: &str, interface: &str| {
            format!("{destination} {length} {NONE} 00 {gateway} 00000400 00000001 00000000 00000001 {interface:>8}\n")
        };
        let routes = [
            route("26062800022000020000000000000000", "40", NONE, "eth0"),
            route("26062800022000030000000000000000", "40", GATEWAY, "eth0"),
            route("26062800022000040000000000000000", "40", NONE, "lo"),
            route("26062800022000050000000000000001", "80", NONE, "eth0"),
            route("20000000000000000000000000000000", "03", NONE, "tun"),
            route(NONE, "00", GATEWAY, "eth0"),
            route("not a number", "40", NONE, "eth0"),
            "what is no line\n".to_owned(),
        ];
        let found: Vec<_> = route_prefixes(&routes.concat()).collect();
        assert_eq!(found, [(0x2606_2800_0220_0002_0000_0000_0000_0000, 64)]);
    }

    #[test]
    fn host_is_loopback_certainly_or_only_possibly() {
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
            // Test a borrowed and an owned URL host, because callers use both types.
            let url: url::Url = format!("http://{host}:10000/").parse().unwrap();
            let host = url.host().unwrap();
            assert_eq!((kind_of_host(&host), is_certainly_loopback(&host)), (leads_to, is_certain), "{url}");
            let owned = host.to_owned();
            assert_eq!((kind_of_host(&owned), is_certainly_loopback(&owned)), (leads_to, is_certain), "{url}");
        }
    }
}
