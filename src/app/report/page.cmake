# Sets LLAMESH_REPORT_PAGE to a source with the page of `llamesh report`, so that it needs no file
# where it is installed.
set(LLAMESH_REPORT_PAGE ${CMAKE_CURRENT_BINARY_DIR}/report_page.cpp)
foreach(file report.css chart.js report.js)
  file(READ ${CMAKE_CURRENT_LIST_DIR}/${file} ${file})
  set_property(DIRECTORY APPEND PROPERTY CMAKE_CONFIGURE_DEPENDS ${CMAKE_CURRENT_LIST_DIR}/${file})
endforeach()
configure_file(${CMAKE_CURRENT_LIST_DIR}/page.cpp.in ${LLAMESH_REPORT_PAGE} @ONLY)
