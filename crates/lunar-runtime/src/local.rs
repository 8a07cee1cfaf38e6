//! Values that live on one core, and handles by which every core reaches them: on their own core at once, from other cores
//! through a channel.

use std::any::Any;
use std::cell::RefCell;
use std::collections::HashMap;
use std::hash::{BuildHasherDefault, Hasher};
use std::marker::PhantomData;
use std::rc::Rc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// The values of one core. A handle knows the slot of its value; other users look up the id.
#[derive(Default)]
struct CoreValues {
    slots: Vec<Option<CoreValue>>,
    slot_of: HashMap<u64, usize, BuildHasherDefault<IdHasher>>,
}

struct CoreValue {
    id: u64,
    value: Rc<dyn Any>,
}

impl CoreValues {
    /// Inserts a value. Returns its slot, and the earlier value of this id.
    fn insert(&mut self, id: u64, value: Rc<dyn Any>) -> (usize, Option<CoreValue>) {
        let earlier = self.slot_of.get(&id).and_then(|slot| self.slots[*slot].take());
        let free = self.slots.iter().position(Option::is_none);
        let slot = free.unwrap_or_else(|| {
            self.slots.push(None);
            self.slots.len() - 1
        });
        self.slots[slot] = Some(CoreValue { id, value });
        self.slot_of.insert(id, slot);
        (slot, earlier)
    }

    /// The value of this slot, if it still has the id.
    #[inline]
    fn at(&self, slot: usize, id: u64) -> Option<Rc<dyn Any>> {
        let value = self.slots.get(slot)?.as_ref()?;
        (value.id == id).then(|| value.value.clone())
    }

    fn get(&self, id: u64) -> Option<Rc<dyn Any>> {
        self.at(*self.slot_of.get(&id)?, id)
    }

    /// Removes the value if it is still the one of its slot.
    fn remove(&mut self, slot: usize, value: *const ()) -> Option<CoreValue> {
        let entry = self.slots[slot].take_if(|entry| std::ptr::addr_eq(Rc::as_ptr(&entry.value), value))?;
        self.slot_of.remove(&entry.id);
        Some(entry)
    }
}

thread_local! {
    static VALUES: RefCell<CoreValues> = RefCell::default();
}
static NEXT_ID: AtomicU64 = AtomicU64::new(1);

/// At most one value per core, visible on that core only.
pub struct CoreLocal<T> {
    id: u64,
    value: PhantomData<fn() -> T>,
}

impl<T: 'static> CoreLocal<T> {
    /// Creates it without a value on any core.
    pub fn new() -> CoreLocal<T> {
        CoreLocal { id: NEXT_ID.fetch_add(1, Relaxed), value: PhantomData }
    }

    /// The value of this core.
    #[inline]
    pub fn get(&self) -> Option<Rc<T>> {
        VALUES.with_borrow(|values| values.get(self.id))?.downcast().ok()
    }

    /// Sets the value of this core until the registration is dropped. It replaces an earlier value.
    #[must_use]
    pub fn register(&self, value: Rc<T>) -> Registration<T> {
        let (slot, earlier) = VALUES.with_borrow_mut(|values| values.insert(self.id, value.clone()));
        // Dropped outside of the borrow: its destructor may use this module.
        drop(earlier);
        Registration { slot, value }
    }
}

impl<T: 'static> Default for CoreLocal<T> {
    fn default() -> CoreLocal<T> {
        CoreLocal::new()
    }
}

/// Keeps a value registered for its core. It stays on that core.
pub struct Registration<T: 'static> {
    slot: usize,
    value: Rc<T>,
}

impl<T> Registration<T> {
    /// The value.
    pub fn value(&self) -> &Rc<T> {
        &self.value
    }
}

impl<T> Drop for Registration<T> {
    fn drop(&mut self) {
        let value = Rc::as_ptr(&self.value).cast();
        // On an ending thread, the values may be destroyed already.
        drop(VALUES.try_with(|values| values.borrow_mut().remove(self.slot, value)));
    }
}

/// A handle of a value that lives on one core, for use on every core.
pub struct CoreHandle<T, M> {
    id: u64,
    slot: usize,
    sender: flume::Sender<M>,
    value: PhantomData<fn() -> T>,
}

impl<T, M> Clone for CoreHandle<T, M> {
    fn clone(&self) -> CoreHandle<T, M> {
        CoreHandle { sender: self.sender.clone(), ..*self }
    }
}

impl<T: 'static, M> CoreHandle<T, M> {
    /// A handle of a value of this core. The value is local until the registration is dropped. Its owner receives the
    /// messages; [`flume::Receiver::recv_async`] fails when all handles are gone.
    pub fn new(value: Rc<T>) -> (CoreHandle<T, M>, Registration<T>, flume::Receiver<M>) {
        let local = CoreLocal::new();
        let registration = local.register(value);
        let (sender, messages) = flume::unbounded();
        let handle = CoreHandle { id: local.id, slot: registration.slot, sender, value: PhantomData };
        (handle, registration, messages)
    }

    /// The value itself, on its own core.
    #[inline]
    pub fn local(&self) -> Option<Rc<T>> {
        VALUES.with_borrow(|values| values.at(self.slot, self.id))?.downcast().ok()
    }

    /// Sends a message to the owner of the value.
    ///
    /// # Errors
    /// Returns the message when the receiver is gone.
    pub fn send(&self, message: M) -> Result<(), M> {
        self.sender.send(message).map_err(|e| e.into_inner())
    }
}

/// Spreads consecutive ids: multiplication by an odd number is a bijection, and its upper bits depend on all of the id.
#[derive(Default)]
struct IdHasher(u64);

impl Hasher for IdHasher {
    fn write(&mut self, bytes: &[u8]) {
        bytes.iter().for_each(|byte| self.write_u64(u64::from(*byte)));
    }

    #[inline]
    fn write_u64(&mut self, id: u64) {
        self.0 = (self.0 ^ id).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    }

    fn finish(&self) -> u64 {
        self.0
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Cores;
    use std::sync::Arc;

    #[test]
    fn value_is_local_until_its_registration_is_dropped() {
        let local = CoreLocal::new();
        assert!(local.get().is_none());
        let registration = local.register(Rc::new(7));
        assert_eq!(local.get().as_deref(), Some(&7));
        assert!(CoreLocal::<i32>::new().get().is_none(), "each `CoreLocal` has its own values");
        drop(registration);
        assert!(local.get().is_none());
    }

    #[test]
    fn earlier_registration_does_not_remove_a_later_value() {
        let local = CoreLocal::new();
        let earlier = local.register(Rc::new(1));
        let _later = local.register(Rc::new(2));
        drop(earlier);
        assert_eq!(local.get().as_deref(), Some(&2));
    }

    /// A value that owns a registration, as a connection may own another one.
    struct Owner(Option<Registration<Owner>>);

    #[test]
    fn dropped_value_may_drop_registrations_of_its_own() {
        let (inner, outer) = (CoreLocal::new(), CoreLocal::new());
        let owned = inner.register(Rc::new(Owner(None)));
        let registration = outer.register(Rc::new(Owner(Some(owned))));
        assert!(outer.get().is_some_and(|owner| owner.0.is_some()));
        drop(registration);
        assert!(outer.get().is_none() && inner.get().is_none());
    }

    #[test]
    fn every_core_has_a_value_of_its_own() {
        let cores = Cores::start(&[0, 0]).expect("event loops");
        let local = Arc::new(CoreLocal::new());
        let seen: Vec<Option<usize>> = (0..2)
            .map(|core| {
                let local = local.clone();
                let seen = cores.wait(core, move || async move {
                    let before = local.get().map(|value| *value);
                    std::mem::forget(local.register(Rc::new(core)));
                    before.or(local.get().map(|value| *value))
                });
                seen.expect("the core runs")
            })
            .collect();
        assert_eq!(seen, [Some(0), Some(1)]);
        cores.stop();
    }

    #[test]
    fn handle_is_local_on_its_core_and_sends_from_others() {
        let cores = Cores::start(&[0, 0]).expect("event loops");
        let handle = cores.wait(0, || async {
            let (handle, registration, messages) = CoreHandle::new(Rc::new(RefCell::new(0)));
            let value = handle.local().expect("this is its core");
            crate::spawn(async move {
                while let Ok((n, reply)) = messages.recv_async().await {
                    *value.borrow_mut() += n;
                    let _ = flume::Sender::<i32>::send(&reply, *value.borrow());
                }
                drop(registration);
            });
            *handle.local().expect("it is here").borrow_mut() += 1;
            Arc::new(handle)
        });
        let handle = handle.expect("the core runs");
        assert!(handle.local().is_none(), "this thread is not its core");
        let sum = cores.wait(1, move || async move {
            let (reply, answer) = flume::bounded(1);
            assert!(handle.local().is_none() && handle.send((2, reply)).is_ok());
            answer.recv_async().await
        });
        assert_eq!(sum.expect("the core runs"), Ok(3));
        cores.stop();
    }

    #[test]
    fn handle_of_a_removed_value_does_not_reach_the_next() {
        let (old, registration, _) = CoreHandle::<i32, ()>::new(Rc::new(1));
        drop(registration);
        let (new, _registration, _) = CoreHandle::<i32, ()>::new(Rc::new(2));
        assert_eq!(old.slot, new.slot);
        assert!(old.local().is_none());
        assert_eq!(new.local().as_deref(), Some(&2));
    }

    #[test]
    fn message_without_a_receiver_comes_back() {
        let (handle, _registration, messages) = CoreHandle::new(Rc::new(()));
        drop(messages);
        assert_eq!(handle.send(5), Err(5));
    }
}
