// The registers of the sums of a warpgroup's products, `float d[NT][4]`, as asm names them (KD_D3: %0 to %11) and as operands of it
// (KD_O3(KD_ADD)): for as many tiles NT of eight columns as there are products of.
#pragma once

#define KD_SET "=f"
#define KD_ADD "+f"
#define KD_O(IO, j) IO(d[j][0]), IO(d[j][1]), IO(d[j][2]), IO(d[j][3])

#define KD_D1 "%0, %1, %2, %3"
#define KD_O1(IO) KD_O(IO, 0)
#define KD_D2 KD_D1 ", %4, %5, %6, %7"
#define KD_O2(IO) KD_O1(IO), KD_O(IO, 1)
#define KD_D3 KD_D2 ", %8, %9, %10, %11"
#define KD_O3(IO) KD_O2(IO), KD_O(IO, 2)
#define KD_D4 KD_D3 ", %12, %13, %14, %15"
#define KD_O4(IO) KD_O3(IO), KD_O(IO, 3)
#define KD_D5 KD_D4 ", %16, %17, %18, %19"
#define KD_O5(IO) KD_O4(IO), KD_O(IO, 4)
#define KD_D6 KD_D5 ", %20, %21, %22, %23"
#define KD_O6(IO) KD_O5(IO), KD_O(IO, 5)
#define KD_D7 KD_D6 ", %24, %25, %26, %27"
#define KD_O7(IO) KD_O6(IO), KD_O(IO, 6)
#define KD_D8 KD_D7 ", %28, %29, %30, %31"
#define KD_O8(IO) KD_O7(IO), KD_O(IO, 7)
#define KD_D9 KD_D8 ", %32, %33, %34, %35"
#define KD_O9(IO) KD_O8(IO), KD_O(IO, 8)
#define KD_D10 KD_D9 ", %36, %37, %38, %39"
#define KD_O10(IO) KD_O9(IO), KD_O(IO, 9)
#define KD_D11 KD_D10 ", %40, %41, %42, %43"
#define KD_O11(IO) KD_O10(IO), KD_O(IO, 10)
#define KD_D12 KD_D11 ", %44, %45, %46, %47"
#define KD_O12(IO) KD_O11(IO), KD_O(IO, 11)
#define KD_D13 KD_D12 ", %48, %49, %50, %51"
#define KD_O13(IO) KD_O12(IO), KD_O(IO, 12)
#define KD_D14 KD_D13 ", %52, %53, %54, %55"
#define KD_O14(IO) KD_O13(IO), KD_O(IO, 13)
#define KD_D15 KD_D14 ", %56, %57, %58, %59"
#define KD_O15(IO) KD_O14(IO), KD_O(IO, 14)
#define KD_D16 KD_D15 ", %60, %61, %62, %63"
#define KD_O16(IO) KD_O15(IO), KD_O(IO, 15)
#define KD_D17 KD_D16 ", %64, %65, %66, %67"
#define KD_O17(IO) KD_O16(IO), KD_O(IO, 16)
#define KD_D22 KD_D17 ", %68, %69, %70, %71, %72, %73, %74, %75, %76, %77, %78, %79, %80, %81, %82, %83, %84, %85, %86, %87"
#define KD_O22(IO) KD_O17(IO), KD_O(IO, 17), KD_O(IO, 18), KD_O(IO, 19), KD_O(IO, 20), KD_O(IO, 21)
