use runseal_kernel::sha256::*;
fn cpu() -> f64 {
    let mut t = unsafe { std::mem::zeroed::<libc::timespec>() };
    unsafe { libc::clock_gettime(libc::CLOCK_THREAD_CPUTIME_ID, &mut t) };
    t.tv_sec as f64 + t.tv_nsec as f64 / 1e9
}
fn main() {
    let (x, y) = (vec![1u8; 128 << 10], vec![2u8; 128 << 10]);
    let n = 4000;
    for _ in 0..3 {
        let t = cpu();
        let mut a = Sha256::new();
        for _ in 0..n {
            a.update(&x);
        }
        let one = (n * x.len()) as f64 / (cpu() - t) / 1e9;
        let t = cpu();
        let (mut a2, mut b) = (Sha256::new(), Sha256::new());
        for _ in 0..n {
            update2(&mut a2, &x, &mut b, &y);
        }
        let two = (2 * n * x.len()) as f64 / (cpu() - t) / 1e9;
        println!(
            "{:?} one {one:.2} two {two:.2} GB/cpu-s ratio {:.2}",
            a.finalize() == a2.finalize(),
            two / one
        );
    }
}
