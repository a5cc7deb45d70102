//! A wrong launch does not compile.

#[test]
fn wrong_operands_do_not_compile() {
    trybuild::TestCases::new().compile_fail("tests/wrong/*.rs");
}
