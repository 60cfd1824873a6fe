//! Doubly linked lists of small numbers in one array.
//!
//! Pages and checkpoints leave free lists from the middle when a hit finds them, so the lists are linked in both directions.
//! A number is in at most one list that shares its [`Links`]: being on two lists at once cannot be expressed.

const NONE: u32 = u32::MAX;

/// Neighbours of each number, for all lists that share them.
#[derive(Debug)]
pub(crate) struct Links(Vec<Link>);

#[derive(Debug, Clone, Copy)]
struct Link {
    previous: u32,
    next: u32,
}

impl Links {
    /// Links for the numbers below `len`.
    pub(crate) fn new(len: usize) -> Self {
        Self(vec![Link { previous: NONE, next: NONE }; len])
    }
}

/// One list. All methods take the links that it shares with others.
#[derive(Debug, Clone)]
pub(crate) struct List {
    front: u32,
    back: u32,
    len: usize,
}

impl List {
    pub(crate) fn new() -> Self {
        Self { front: NONE, back: NONE, len: 0 }
    }

    pub(crate) fn len(&self) -> usize {
        self.len
    }

    pub(crate) fn push_back(&mut self, links: &mut Links, item: u32) {
        links.0[item as usize] = Link { previous: self.back, next: NONE };
        match self.back {
            NONE => self.front = item,
            back => links.0[back as usize].next = item,
        }
        self.back = item;
        self.len += 1;
    }

    pub(crate) fn push_front(&mut self, links: &mut Links, item: u32) {
        links.0[item as usize] = Link { previous: NONE, next: self.front };
        match self.front {
            NONE => self.back = item,
            front => links.0[front as usize].previous = item,
        }
        self.front = item;
        self.len += 1;
    }

    /// Takes `item` out. It must be in this list.
    pub(crate) fn remove(&mut self, links: &mut Links, item: u32) {
        let Link { previous, next } = links.0[item as usize];
        match previous {
            NONE => self.front = next,
            previous => links.0[previous as usize].next = next,
        }
        match next {
            NONE => self.back = previous,
            next => links.0[next as usize].previous = previous,
        }
        self.len -= 1;
    }

    pub(crate) fn pop_front(&mut self, links: &mut Links) -> Option<u32> {
        let item = Some(self.front).filter(|&front| front != NONE)?;
        self.remove(links, item);
        Some(item)
    }

    /// Items from front to back.
    pub(crate) fn iter<'a>(&self, links: &'a Links) -> impl Iterator<Item = u32> + use<'a> {
        let some = |item: u32| Some(item).filter(|&item| item != NONE);
        std::iter::successors(some(self.front), move |&item| some(links.0[item as usize].next))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn items_move_between_lists_from_any_place() {
        let mut links = Links::new(5);
        let (mut a, mut b) = (List::new(), List::new());
        for item in 0..5 {
            a.push_back(&mut links, item);
        }
        for item in [2, 0, 4] {
            a.remove(&mut links, item);
            b.push_front(&mut links, item);
        }
        assert_eq!(a.iter(&links).collect::<Vec<_>>(), [1, 3]);
        assert_eq!(b.iter(&links).collect::<Vec<_>>(), [4, 0, 2]);
        assert_eq!((a.len(), b.len()), (2, 3));
        assert_eq!(a.pop_front(&mut links), Some(1));
        assert_eq!(a.pop_front(&mut links), Some(3));
        assert_eq!(a.pop_front(&mut links), None);
        a.push_front(&mut links, 1);
        assert_eq!(a.iter(&links).collect::<Vec<_>>(), [1]);
    }
}
