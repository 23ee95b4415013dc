// Values of Rust between the process with the tests and the process with the program; see wire.hpp.
use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::fs::File;
use std::hash::Hash;
use std::io::{Read, Write};
use std::os::fd::FromRawFd;

pub trait Wire: Sized {
    fn put(&self, to: &mut Vec<u8>);
    fn get(from: &mut &[u8]) -> Option<Self>;
}

fn take<'a>(from: &mut &'a [u8], count: usize) -> Option<&'a [u8]> {
    if count > from.len() {
        return None;
    }
    let (first, rest) = from.split_at(count);
    *from = rest;
    Some(first)
}

macro_rules! numbers { ($($t:ty)*) => { $(impl Wire for $t {
    fn put(&self, to: &mut Vec<u8>) { to.extend_from_slice(&self.to_le_bytes()); }
    fn get(from: &mut &[u8]) -> Option<Self> {
        Some(<$t>::from_le_bytes(take(from, std::mem::size_of::<$t>())?.try_into().ok()?))
    }
})* } }
numbers!(i8 i16 i32 i64 i128 isize u8 u16 u32 u64 u128 usize f32 f64);

impl Wire for bool {
    fn put(&self, to: &mut Vec<u8>) { to.push(*self as u8); }
    fn get(from: &mut &[u8]) -> Option<Self> { Some(u8::get(from)? != 0) }
}
impl Wire for char {
    fn put(&self, to: &mut Vec<u8>) { (*self as u32).put(to); }
    fn get(from: &mut &[u8]) -> Option<Self> { char::from_u32(u32::get(from)?) }
}
impl Wire for () {
    fn put(&self, _: &mut Vec<u8>) {}
    fn get(_: &mut &[u8]) -> Option<Self> { Some(()) }
}
impl Wire for String {
    fn put(&self, to: &mut Vec<u8>) { self.len().put(to); to.extend_from_slice(self.as_bytes()); }
    fn get(from: &mut &[u8]) -> Option<Self> {
        let count = usize::get(from)?;
        String::from_utf8(take(from, count)?.to_vec()).ok()
    }
}
impl<T: Wire> Wire for Option<T> {
    fn put(&self, to: &mut Vec<u8>) { self.is_some().put(to); if let Some(value) = self { value.put(to); } }
    fn get(from: &mut &[u8]) -> Option<Self> {
        Some(if bool::get(from)? { Some(T::get(from)?) } else { None })
    }
}
fn many<T: Wire>(from: &mut &[u8]) -> Option<Vec<T>> {
    let count = usize::get(from)?;
    let mut all = Vec::new();
    if count > 32 << 20 { return None; }
    for _ in 0..count { all.push(T::get(from)?); }
    Some(all)
}
impl<T: Wire> Wire for Vec<T> {
    fn put(&self, to: &mut Vec<u8>) { self.len().put(to); for one in self { one.put(to); } }
    fn get(from: &mut &[u8]) -> Option<Self> { many(from) }
}
macro_rules! collections { ($($t:ident: $($bound:path),*);*) => { $(impl<T: Wire $(+ $bound)*> Wire for $t<T> {
    fn put(&self, to: &mut Vec<u8>) { self.len().put(to); for one in self { one.put(to); } }
    fn get(from: &mut &[u8]) -> Option<Self> { Some(many::<T>(from)?.into_iter().collect()) }
})* } }
collections!(HashSet: Eq, Hash; BTreeSet: Ord);
macro_rules! maps { ($($t:ident: $($bound:path),*);*) => { $(impl<K: Wire $(+ $bound)*, V: Wire> Wire for $t<K, V> {
    fn put(&self, to: &mut Vec<u8>) { self.len().put(to); for (k, v) in self { k.put(to); v.put(to); } }
    fn get(from: &mut &[u8]) -> Option<Self> { Some(many::<(K, V)>(from)?.into_iter().collect()) }
})* } }
maps!(HashMap: Eq, Hash; BTreeMap: Ord);
macro_rules! tuples { ($(($($t:ident $n:tt),*))*) => { $(impl<$($t: Wire),*> Wire for ($($t,)*) {
    fn put(&self, to: &mut Vec<u8>) { $(self.$n.put(to);)* }
    fn get(from: &mut &[u8]) -> Option<Self> { Some(($($t::get(from)?,)*)) }
})* } }
tuples!((A 0) (A 0, B 1) (A 0, B 1, C 2) (A 0, B 1, C 2, D 3) (A 0, B 1, C 2, D 3, E 4) (A 0, B 1, C 2, D 3, E 4, F 5));

fn descriptor(place: usize) -> File {
    let number = std::env::args().nth(place).unwrap().parse().unwrap();
    unsafe { File::from_raw_fd(number) }
}

pub struct Channel { read: File, write: File }

impl Channel {
    pub fn open() -> Channel { Channel { read: descriptor(1), write: descriptor(2) } }
    pub fn send<T: Wire>(&mut self, value: &T) -> bool {
        let mut body = Vec::new();
        value.put(&mut body);
        let mut frame = (body.len() as u32).to_le_bytes().to_vec();
        frame.extend(body);
        self.write.write_all(&frame).is_ok()
    }
    pub fn receive<T: Wire>(&mut self) -> Option<T> {
        let mut count = [0u8; 4];
        self.read.read_exact(&mut count).ok()?;
        let count = u32::from_le_bytes(count) as usize;
        if count > 32 << 20 { return None; }
        let mut body = vec![0u8; count];
        self.read.read_exact(&mut body).ok()?;
        T::get(&mut body.as_slice())
    }
}
