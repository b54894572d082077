# needs: cmake ninja c++ ctest
. /programs/common.sh
cat >CMakeLists.txt <<'P'
cmake_minimum_required(VERSION 3.10)
project(t CXX)
enable_testing()
find_package(Threads REQUIRED)
foreach(i RANGE 1 12)
  file(WRITE ${CMAKE_BINARY_DIR}/f${i}.cc "#include <vector>\n#include <string>\nint f${i}() { std::vector<std::string> v(${i}, \"x\"); return int(v.size()); }\n")
  list(APPEND files ${CMAKE_BINARY_DIR}/f${i}.cc)
endforeach()
add_library(f SHARED ${files})
add_executable(t t.cc)
target_link_libraries(t f Threads::Threads)
add_test(NAME runs COMMAND t)
P
cat >t.cc <<'P'
#include <cstdio>
#include <thread>
#include <stdexcept>
int f3(); int f12();
int main() { int s = 0; std::thread t([&] { s = f3() + f12(); }); t.join(); try { throw std::runtime_error("thrown"); } catch (std::exception &e) { std::printf("%d %s\n", s, e.what()); } }
P
cmake -G Ninja -B b . >/dev/null && ninja -C b >log || cat log
./b/t
ctest --test-dir b 2>&1 | grep 'tests passed'
touch t.cc && ninja -C b | tail -n 1 | cut -c 1-40
ninja -C b | tail -n 1
